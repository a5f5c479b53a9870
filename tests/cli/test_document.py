from pydoc_data.topics import topics

from ringkv.cli.document import CHAPTERS, manual


def words(text: str) -> int:
    return len(text.split())


def test_the_text_is_as_long_as_requested_to_a_paragraph() -> None:
    assert 1800 < words(manual(2000, words)) <= 2000


def test_there_is_enough_of_it_for_a_long_context() -> None:
    assert words(manual(12_000, words)) > 11_500


def test_it_is_the_manuals_own_text_from_its_beginning() -> None:
    assert topics[CHAPTERS[0]].startswith(manual(200, words))
