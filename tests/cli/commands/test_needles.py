import pytest

from ringkv.cli.commands.demo import NEEDLES, Needle


@pytest.mark.parametrize("needle", NEEDLES)
def test_a_needle_is_a_paragraph_after_two_thirds_of_the_document(needle: Needle) -> None:
    paragraphs = [f"paragraph {number}" for number in range(9)]
    hidden = needle.hidden_in("\n\n".join(paragraphs)).split("\n\n")
    assert hidden == [*paragraphs[:6], needle.sentence, *paragraphs[6:]]
    assert needle.is_in(needle.sentence)
    assert not needle.is_in(needle.question)


@pytest.mark.parametrize(("answer", "is_in"), [("It is 7294.", True), ("It is 72945.", False), ("17294", False)])
def test_a_longer_number_is_another_number(answer: str, is_in: bool) -> None:
    assert Needle("number", "7294").is_in(answer) == is_in


def test_capitals_do_not_matter() -> None:
    assert Needle("city", "Lisbon").is_in("in LISBON, Portugal")
