from ringkv.cli.document import manual

HIDDEN = "Here it is."


def words(text: str) -> int:
    return len(text.split())


def test_the_text_is_as_long_as_asked_to_a_paragraph() -> None:
    assert 1800 < words(manual(2000, words, HIDDEN)) <= 2000


def test_the_sentence_is_hidden_in_the_middle() -> None:
    before, after = manual(2000, words, HIDDEN).split(HIDDEN)
    assert 0.3 < words(before) / words(before + after) < 0.7
