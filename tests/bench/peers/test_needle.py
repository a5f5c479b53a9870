import re
from typing import Any

from bench.peers.needle import Needle, needles, recalls


class Words:
    """A tokenizer whose tokens are words and the white space between them."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._id(word) for word in re.findall(r"\S+|\s+", text)]

    def decode(self, ids: Any) -> str:
        return "".join(self._words[id] for id in ids)

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


class Plain:
    def encode(self, messages: Any, tokenizer: Words) -> list[int]:
        return tokenizer.encode(messages[0]["content"])


def test_needles_are_deeper_from_prompt_to_prompt_and_prompts_keep_their_length() -> None:
    words = Words()
    found = needles(words, Plain(), 5, 1000)  # type: ignore[arg-type]
    assert all(900 <= len(needle.tokens) <= 1000 for needle in found)
    depths = [words.decode(needle.tokens).index(needle.number) for needle in found]
    assert depths == sorted(depths)
    assert depths[0] < 400
    assert len({needle.number for needle in found}) == 5


def test_an_answer_is_right_if_it_contains_its_own_number() -> None:
    found = [Needle([1], "17"), Needle([1], "23")]
    answers = {
        "needle-8/0/0": {"ringkv": "it is 17", "openvino": "17"},
        "needle-8/1/0": {"ringkv": "17", "openvino": "23"},
    }
    records = [
        {"trial": trial_name, "kind": "output", "engine": engine, "tokens": text}
        for trial_name, texts in answers.items()
        for engine, text in texts.items()
    ]
    cells = {cell.engine: cell for cell in recalls(records, found, lambda tokens: tokens, 8192, 16)}  # type: ignore[arg-type, return-value]
    assert (cells["ringkv"].recall, cells["openvino"].recall) == (0.5, 1.0)
    assert cells["ringkv"].kept == 2048
