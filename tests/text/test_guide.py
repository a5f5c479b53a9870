"""Guides on tokens that are bytes: their masks follow the grammar, character by character."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from ringkv.base.errors import InvalidRequest, RequestFailed
from ringkv.text.grammar import LONGEST, after_reasoning, choice, json_object, json_schema, lark_or_gbnf, regex
from ringkv.text.guide import ClosingSearch, Guides, _readable
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
from tests.refusals import refusal

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
        (json_schema({"enum": [str(n) * 9 for n in range(200_000)]}), "too large"),
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


def name(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def chain(count: int, link: str, last: str, case: Any = str) -> str:
    rules = [f"{case(name(at))}: {link.replace('NEXT', case(name(at + 1)))}" for at in range(count)]
    return lark_or_gbnf("\n".join([f"start: {case(name(0))}", *rules, f"{case(name(count))}: {last}"]))


def references(count: int, wrap: Any) -> str:
    definitions = {name(at): wrap({"$ref": f"#/$defs/{name(at + 1)}"}) for at in range(count)}
    return json_schema({"$ref": f"#/$defs/{name(0)}", "$defs": {**definitions, name(count): {"type": "boolean"}}})


def nested(count: int, schema: Any) -> Any:
    for _ in range(count):
        schema = {"items": schema}
    return schema


CHAINS = """
from pathlib import Path
from sys import argv
from ringkv.base.errors import InvalidRequest
from ringkv.text.guide import ClosingSearch, Guides, _readable
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
tokenizer = Tokenizer.from_directory(argv[1])
for path in sorted(Path(argv[2]).iterdir()):
    try:
        Guides(lambda: tokenizer, 258).check(path.read_text())
    except InvalidRequest as error:
        assert "too large" in str(error)
    print(path.name)
"""


def test_the_longest_chains_of_references_that_fit_do_not_overflow_the_stack(tmp_path: Path) -> None:
    grammars = {
        "rules": chain(LONGEST // 13, "NEXT", '"a"'),
        "terminals": chain(LONGEST // 13, "NEXT", '"a"', str.upper),
        "refs": references(LONGEST // 33, lambda one: one),
        "all": references(LONGEST // 46, lambda one: {"allOf": [one]}),
        "arrays": references(LONGEST // 200, lambda one: nested(10, one)),
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "grammars").mkdir()
    for title, grammar in grammars.items():
        assert LONGEST * 0.6 < len(grammar) <= LONGEST, (title, len(grammar))
        (tmp_path / "grammars" / title).write_text(grammar)
    folders = [str(byte_tokenizer.save(tmp_path / "model")), str(tmp_path / "grammars")]
    child = subprocess.run([sys.executable, "-c", CHAINS, *folders], capture_output=True, text=True)
    assert (child.stdout.split(), child.returncode) == (sorted(grammars), 0), child.stderr[-500:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: lark_or_gbnf("start: " + '"a" ' * LONGEST),
        lambda: choice([name(at) for at in range(50_000)]),
        lambda: regex("a" * LONGEST),
        lambda: json_schema({"enum": [name(at) for at in range(50_000)]}),
    ],
)
def test_a_grammar_that_is_too_long_is_refused_unread_with_its_length(guides: Guides, make: Any) -> None:
    started = time.process_time()
    with refusal("grammar", "131,072"):
        guides.check(make())
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "grammar",
    [
        regex("(a{1000}){1000}"),
        lark_or_gbnf(
            "start: " + " | ".join(map(name, range(2001))) + "".join(f'\n{name(at)}: "a" "b"' for at in range(2001))
        ),
        lark_or_gbnf("start: s\ns: " + "s s | " * 1000 + '"a"'),
    ],
    ids=["repetitions", "rules", "ambiguous"],
)
def test_a_grammar_that_exceeds_a_limit_after_its_first_token_is_refused_too(guides: Guides, grammar: str) -> None:
    with refusal("grammar", "too large"):
        guides.check(grammar)


def test_a_limit_that_is_exceeded_while_generating_is_an_error_of_the_request(guides: Guides) -> None:
    words = " | ".join(f'"{name(at)}"' for at in range(2001))
    guide = guides(lark_or_gbnf(f'start: "ab" rest\nrest: {words}'))
    for byte in b"ab" + name(0)[:1].encode():
        guide.take(byte)
    with pytest.raises(InvalidRequest, match="2000"):
        guide.allowed(1000)


@pytest.mark.parametrize("texts", [[name(at) for at in range(5000)], [""], ["", "a"], ["a", "ab", "é😀\n\"'\\/"]])
def test_a_choice_of_any_number_of_texts_allows_exactly_these(guides: Guides, texts: list[str]) -> None:
    grammar = choice(texts)
    for text in (texts[0], texts[-1]):
        assert "." in after(guides, grammar, text)
    assert after(guides, grammar, "") == "".join(
        sorted({text.encode().decode("latin-1")[:1] or "." for text in texts}, key=lambda one: (one == ".", one))
    )


def test_an_error_shows_no_build_path_and_no_backtrace() -> None:
    raw = "bad rule\nStack backtrace:\n   0: std::backtrace\n at /home/x/.cargo/a.rs:12:3"
    assert _readable(raw) == "bad rule"
    assert _readable("panic at src/lib.rs:5:1: bad <non-verbose/>") == "panic at : bad"
    assert len(_readable("x" * 1000)) < 400


def test_half_of_a_surrogate_pair_is_refused(guides: Guides) -> None:
    with refusal("regex", "surrogate"):
        regex("a\ud800")
    with refusal("grammar", "surrogate"):
        guides.check('start: "\ud800"')


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_with_marks_that_are_tokens_may_come_before_a_document(special: bool, opened: bool) -> None:
    letters = sorted(ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_tokens([AddedToken(mark, special=special) for mark in ("<think>", "</think>")])
    grammar = after_reasoning(choice(["yes", "no"]), opened, 256, 257)
    matcher = LLMatcher(LLTokenizer(inner.to_str(), n_vocab=258), grammar)
    begin, thought, answer = [] if opened else [256], inner.encode('"no" is it.').ids, inner.encode("\n\nyes").ids
    tokens = [*begin, *thought, 257, *answer]
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    straight = LLMatcher(LLTokenizer(inner.to_str(), n_vocab=258), grammar)
    straight.try_consume_tokens(inner.encode("yes").ids)
    assert straight.is_accepting() != opened
