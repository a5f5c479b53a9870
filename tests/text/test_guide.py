"""Guides on tokens that are bytes: what they allow is what the grammar says, character by character."""

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.grammar import choice, json_object, json_schema, lark_or_gbnf, regex
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer
from ringkv.text.way_out import WayOut

END, VOCAB = 257, 300  # more than the tokenizer has


@pytest.fixture
def guides(bytewise: Tokenizer) -> Guides:
    return Guides(lambda: bytewise, VOCAB)


def allowed(mask: bytes) -> set[int]:
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def after(guides: Guides, grammar: str, text: str) -> str:
    """The characters that may follow `text`; "." for an end."""
    guide = guides(grammar)
    for token in text.encode():
        assert token in allowed(guide.allowed(1000))
        guide.take(token)
    return "".join("." if token == END else chr(token) for token in sorted(allowed(guide.allowed(1000))))


@pytest.mark.parametrize(
    ("grammar", "text", "following"),
    [
        (regex("[ab]c?"), "", "ab"),
        (regex("[ab]c?"), "a", "c."),
        (regex("[ab]c?"), "ac", "."),
        (choice(["yes", "no"]), "", "ny"),
        (choice(["yes", 'y"']), "y", '"e'),
        (json_object(), "", "{"),
        (json_schema({"enum": ["x", 3]}), "", '"3'),
        (json_schema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}), '{"a": ', "ft"),
        (lark_or_gbnf('start: "a" "b"'), "a", "b"),
        (lark_or_gbnf('root ::= "c" | "d"'), "", "cd"),
    ],
)
def test_only_what_can_follow_is_allowed(guides: Guides, grammar: str, text: str, following: str) -> None:
    assert after(guides, grammar, text) == following


@pytest.mark.parametrize("vocab", [258, 287, 288, 289, 300, 320])
def test_a_mask_has_a_bit_for_each_of_the_models_tokens_in_whole_words(bytewise: Tokenizer, vocab: int) -> None:
    mask = Guides(lambda: bytewise, vocab)(regex("a")).allowed(1000)
    assert len(mask) == 4 * -(-vocab // 32)
    assert allowed(mask) == {ord("a")}


def test_a_token_that_is_not_allowed_fails_what_comes_after(guides: Guides) -> None:
    guide = guides(regex("ab"))
    guide.take(ord("z"))
    with pytest.raises(RequestFailed, match="grammar"):
        guide.allowed(1000)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (regex("a{1,3"), "regex"),
        (lark_or_gbnf("start: other"), "other"),
        (regex("a(?=b)"), "look-ahead"),
        (json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_schema({"enum": [str(n) * 9 for n in range(200_000)]}), "too big"),
        (
            json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}),
            "too large",
        ),
        (json_schema({"type": "nothing"}), "nothing|type"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_enforced_is_refused_soon_and_by_name(guides: Guides, grammar: str, said: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match=said):
        guides.check(grammar)
    assert time.monotonic() - started < 10


def written(guides: Guides, grammar: str, most: int, likes: str) -> str:
    """What a writer makes of `most` tokens who takes the first of the characters that he likes; the rest by chance."""
    guide, text = guides(grammar), bytearray()
    for left in range(most, 0, -1):
        may = allowed(guide.allowed(left))
        token = next((ord(like) for like in likes if ord(like) in may), min(may))
        if token == END:
            return text.decode()
        text.append(token)
        guide.take(token)
    return text.decode()


NESTED = {"type": "array", "items": {"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"]}}


@pytest.mark.parametrize("most", [20, 33, 64, 100, 301])
@pytest.mark.parametrize(
    ("schema", "likes"),
    [
        ({"type": "integer"}, "7"),
        (NESTED, "x{,"),
        ({"type": "string"}, "z}"),
    ],
)
def test_a_document_is_whole_when_its_tokens_run_out(guides: Guides, most: int, schema: Any, likes: str) -> None:
    text = written(guides, json_schema(schema), most, likes)
    assert json.loads(text) is not None
    assert len(text) > most // 2


def test_a_short_choice_is_left_to_the_model(guides: Guides) -> None:
    for likes in ("y", "n"):
        assert written(guides, choice(["yes", "no"]), 4, likes)[0] == likes


def test_a_grammar_that_comes_again_is_not_read_again(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = json_schema({"type": "string", "minLength": 3, "maxLength": 7})
    first = guides(grammar)
    first.take(ord('"'))
    monkeypatch.setattr("ringkv.text.guide.LLMatcher", None)  # reading would fail
    assert allowed(guides(grammar).allowed(1000)) == {ord('"')}


def test_a_way_out_is_looked_for_a_few_times_only(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    find = WayOut.find

    def counted(way: WayOut, matcher: LLMatcher, most: int) -> list[int] | None:
        looks.append(most)
        return find(way, matcher, most)

    monkeypatch.setattr(WayOut, "find", counted)
    written(guides, regex("a{2000}"), 256, "a")
    assert looks == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    looks.clear()
    assert written(guides, json_schema({"type": "string"}), 256, "a").endswith('"')
    assert len(looks) < 64


def test_what_has_no_short_end_is_cut_as_ever(guides: Guides) -> None:
    assert written(guides, regex("(a|b)*c{30}"), 20, "b") == "b" * 20


def test_an_end_that_takes_a_search_is_found_where_there_is_room(guides: Guides) -> None:
    text = written(guides, json_schema({"type": "string", "format": "email"}), 120, "x")
    assert json.loads(text).startswith("xxxx")
    assert "@" in text
