"""Guides on tokens that are bytes: their masks follow the grammar, character by character."""

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.closing_search import ClosingSearch
from ringkv.text.grammar import choice, json_object, json_schema, lark_or_gbnf, regex
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer

END, VOCAB = 257, 300  # more than the tokenizer has


@pytest.fixture
def guides(bytewise: Tokenizer) -> Guides:
    return Guides(lambda: bytewise, VOCAB)


def allowed(mask: bytes) -> set[int]:
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def after(guides: Guides, grammar: str, text: str) -> str:
    """Return the characters that may follow `text`; "." is an end."""
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
def test_a_mask_has_a_bit_per_token_of_the_model_in_whole_words(bytewise: Tokenizer, vocab: int) -> None:
    mask = Guides(lambda: bytewise, vocab)(regex("a")).allowed(1000)
    assert len(mask) == 4 * -(-vocab // 32)
    assert allowed(mask) == {ord("a")}


def test_after_a_forbidden_token_the_guide_fails(guides: Guides) -> None:
    guide = guides(regex("ab"))
    guide.take(ord("z"))
    with pytest.raises(RequestFailed, match="grammar"):
        guide.allowed(1000)


@pytest.mark.parametrize(
    ("grammar", "reason"),
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
def test_an_unenforceable_grammar_is_refused_quickly_and_by_name(guides: Guides, grammar: str, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match=reason):
        guides.check(grammar)
    assert time.monotonic() - started < 10


def generate(guides: Guides, grammar: str, limit: int, preferred: str) -> str:
    """Generate up to `limit` tokens: the first allowed character of `preferred`, else the lowest allowed token."""
    guide, text = guides(grammar), bytearray()
    for left in range(limit, 0, -1):
        candidates = allowed(guide.allowed(left))
        token = next((ord(one) for one in preferred if ord(one) in candidates), min(candidates))
        if token == END:
            return text.decode()
        text.append(token)
        guide.take(token)
    return text.decode()


NESTED = {"type": "array", "items": {"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"]}}


@pytest.mark.parametrize("limit", [20, 33, 64, 100, 301])
@pytest.mark.parametrize(
    ("schema", "preferred"),
    [
        ({"type": "integer"}, "7"),
        (NESTED, "x{,"),
        ({"type": "string"}, "z}"),
    ],
)
def test_a_document_is_complete_at_the_token_limit(guides: Guides, limit: int, schema: Any, preferred: str) -> None:
    text = generate(guides, json_schema(schema), limit, preferred)
    assert json.loads(text) is not None
    assert len(text) > limit // 2


def test_a_short_choice_is_not_forced(guides: Guides) -> None:
    for preferred in ("y", "n"):
        assert generate(guides, choice(["yes", "no"]), 4, preferred)[0] == preferred


def test_a_repeated_grammar_is_not_parsed_again(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = json_schema({"type": "string", "minLength": 3, "maxLength": 7})
    first = guides(grammar)
    first.take(ord('"'))
    monkeypatch.setattr("ringkv.text.guide.LLMatcher", None)  # parsing would fail
    assert allowed(guides(grammar).allowed(1000)) == {ord('"')}


def test_a_closing_sequence_is_searched_for_only_a_few_times(guides: Guides, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    find = ClosingSearch.find

    def counted(search: ClosingSearch, matcher: LLMatcher, limit: int) -> list[int] | None:
        searches.append(limit)
        return find(search, matcher, limit)

    monkeypatch.setattr(ClosingSearch, "find", counted)
    generate(guides, regex("a{2000}"), 256, "a")
    assert searches == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    searches.clear()
    assert generate(guides, json_schema({"type": "string"}), 256, "a").endswith('"')
    assert len(searches) < 64


def test_a_grammar_without_a_short_end_is_cut_off(guides: Guides) -> None:
    assert generate(guides, regex("(a|b)*c{30}"), 20, "b") == "b" * 20


def test_an_end_that_needs_a_search_is_found_in_time(guides: Guides) -> None:
    text = generate(guides, json_schema({"type": "string", "format": "email"}), 120, "x")
    assert json.loads(text).startswith("xxxx")
    assert "@" in text
