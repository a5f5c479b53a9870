"""Tokenizers of small GGUF files, made here, against transformers' classes."""

import json
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import GemmaTokenizer, GPT2Tokenizer, Qwen2Tokenizer

from ringkv.text.chat_template import ChatTemplate
from ringkv.text.gguf_tokenizer import write_tokenizer
from ringkv.text.tokenizer import Tokenizer
from tests.text.gguf_files import CONTROL, NORMAL, SCORES, USER_DEFINED, Write, load

TEXTS = st.text() | st.text(alphabet="ab dog's DON'T 12345٣Ⅷ  \t\n\r.,!? éte\u0301日本語😀")


@pytest.fixture(scope="session")
def made(write_gguf: Write, byte_level_keys: dict[str, Any]) -> dict[str, Tokenizer]:
    """The small vocabulary under each rule of splitting."""
    rules = ("gpt-2", "default", "smollm", "qwen2", "llama-bpe", "gpt-4o", "deepseek-llm", "deepseek-v3")
    return {rule: load(write_gguf(**byte_level_keys | {"pre": rule})) for rule in rules}


@pytest.fixture(
    scope="session", params=[("gpt-2", GPT2Tokenizer), ("default", GPT2Tokenizer), ("qwen2", Qwen2Tokenizer)]
)
def family(request: pytest.FixtureRequest, made: dict[str, Tokenizer], byte_level_inner: tokenizers.Tokenizer) -> Any:
    """A rule's tokenizer and the class of its family in transformers, over one vocabulary."""
    rule, theirs = request.param
    model = json.loads(byte_level_inner.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    special = {"unk_token": "<|end|>", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return made[rule], theirs(vocab=model["vocab"], merges=merges, **special)


@given(text=TEXTS)
def test_a_rule_splits_as_the_class_of_its_family_in_transformers(family: Any, text: str):
    ours, theirs = family
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


@given(text=TEXTS)
def test_smollm_cuts_off_each_digit_and_splits_the_rest_as_gpt2(made: dict[str, Tokenizer], text: str):
    runs = _runs(text)
    expected = [id for run in runs for id in made["gpt-2"].encode(run)]
    assert made["smollm"].encode(text) == expected


def _runs(text: str) -> Iterator[str]:
    """Cut before and after each character that is a number."""
    run = ""
    for char in text:
        if unicodedata.category(char).startswith("N"):
            yield from (run, char)
            run = ""
        else:
            run += char
    yield run


def test_llama3_splits_digits_in_threes_from_the_left(write_gguf: Write, byte_level_keys: dict[str, Any]):
    keys = with_tokens(byte_level_keys, ["98", "987", "9876"], ["9 8", "98 7", "987 6"])
    tokenizer = load(write_gguf(**keys | {"pre": "llama-bpe", "add_bos_token": False}))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("987698")] == ["987", "6", "98"]


def test_llama3_takes_a_word_that_is_a_token_without_merges(write_gguf: Write, byte_level_keys: dict[str, Any]):
    keys = with_tokens(byte_level_keys, ["zqz"], [])
    whole = load(write_gguf(**keys | {"pre": "llama-bpe", "add_bos_token": False}))
    merged = load(write_gguf(**keys | {"pre": "qwen2"}))
    assert [len(tokenizer.encode("zqz")) for tokenizer in (whole, merged)] == [1, 3]


def test_r1_distilled_into_qwen_splits_as_qwen2(
    write_gguf: Write, byte_level_keys: dict[str, Any], made: dict[str, Tokenizer]
):
    text = "It's 1987, e\u0301t\u00e9:\n\n  the dog's 3 tails"
    distilled = load(write_gguf(**byte_level_keys | {"pre": "deepseek-r1-qwen"}))
    assert distilled.encode(text) == made["qwen2"].encode(text)
    assert distilled.encode(text) != made["llama-bpe"].encode(text)


def with_tokens(keys: dict[str, Any], tokens: list[str], merges: list[str]) -> dict[str, Any]:
    types = [*keys["token_type"], *[NORMAL] * len(tokens)]
    return keys | {"tokens": keys["tokens"] + tokens, "token_type": types, "merges": keys["merges"] + merges}


@given(text=TEXTS)
def test_every_rule_round_trips_text(made: dict[str, Tokenizer], text: str):
    unicode_form = {"qwen2": unicodedata.normalize("NFC", text)}
    for rule, tokenizer in made.items():
        assert tokenizer.decode(tokenizer.encode(text)) == unicode_form.get(rule, text)


def test_control_tokens_are_special_and_user_defined_ones_are_text(made: dict[str, Tokenizer]):
    tokenizer = made["qwen2"]
    ids = tokenizer.encode("dog<tool><|end|>")
    assert ids[-2:] == [tokenizer.token_id("<tool>"), tokenizer.token_id("<|end|>")]
    assert tokenizer.decode(ids) == "dog<tool>"


def test_padding_tokens_are_left_out(made: dict[str, Tokenizer], byte_level_inner: tokenizers.Tokenizer):
    assert made["qwen2"].vocab_size == byte_level_inner.get_vocab_size()


@pytest.mark.parametrize("adds", [True, False, 1, 0, None])
@pytest.mark.parametrize(("rule", "default"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_is_added_if_the_file_has_it_set_else_by_the_familys_default(
    write_gguf: Write, byte_level_keys: dict[str, Any], rule: str, default: bool, adds: int | None
):
    setting = {} if adds is None else {"add_bos_token": adds}
    tokenizer = load(write_gguf(**byte_level_keys | {"pre": rule} | setting))
    assert (tokenizer.encode("dog")[0] == tokenizer.bos_id) == (default if adds is None else adds)


def test_every_id_that_ends_a_text_is_written(write_gguf: Write, byte_level_keys: dict[str, Any]):
    keys = with_tokens(byte_level_keys, ["<|endoftext|>", "<|turn_end|>"], [])
    keys["token_type"][-2:] = [CONTROL, CONTROL]
    last = len(keys["tokens"]) - 1
    tokenizer = load(write_gguf(**keys | {"eot_token_id": last}))
    assert tokenizer.eos_ids == (keys["eos_token_id"], last, last - 1)


@pytest.mark.parametrize("calls", [["<|return|>"], ["<|return|>", "<|call|>"]])
def test_the_end_of_a_message_is_no_end_of_a_text_if_calls_end_one(
    write_gguf: Write, byte_level_keys: dict[str, Any], calls: list[str]
):
    keys = with_tokens(byte_level_keys, calls, [])
    keys["token_type"][-len(calls) :] = [CONTROL] * len(calls)
    end, first = keys["tokens"].index("<|end|>"), len(byte_level_keys["tokens"])
    tokenizer = load(write_gguf(**keys | {"eos_token_id": first}))
    assert tokenizer.eos_ids == ((first, first + 1) if len(calls) > 1 else (first, end))


def test_the_chat_template_is_written_with_its_tokens(write_gguf: Write, byte_level_keys: dict[str, Any]):
    path = write_gguf("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", **byte_level_keys)
    write_tokenizer(path, path.parent)
    rendered = ChatTemplate.from_directory(path.parent).render([{"role": "user", "content": "hi"}])
    assert rendered == "<|begin|>hi<|end|>"


# SentencePiece


@pytest.fixture(scope="session")
def scored(write_gguf: Write, sentencepiece_keys: dict[str, Any]) -> Tokenizer:
    return load(write_gguf(**sentencepiece_keys))


def naive_sentencepiece(text: str) -> list[str]:
    """Repeatedly merge the leftmost adjacent pair whose product has the best score."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [(SCORES.get(left + right), -n) for n, (left, right) in enumerate(pairwise(parts))]
        known = [(score, back) for score, back in joined if score is not None]
        if not known:
            return parts
        at = -max(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=st.text(alphabet="abcdé ", min_size=1) | st.from_regex(" {1,40}[ab]{0,3}", fullmatch=True))
def test_sentencepiece_merges_by_score_as_a_naive_search_does(scored: Tokenizer, text: str):
    ids = scored.encode(text, add_special_tokens=False)
    assert [scored.pieces.token(id) for id in ids] == naive_sentencepiece(text)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<▁")))
def test_sentencepiece_round_trips_any_text_through_bytes(scored: Tokenizer, text: str):
    ids = scored.encode(text)
    assert ids[0] == scored.bos_id == 1
    assert scored.decode(ids) == text


def test_a_sentencepiece_model_may_omit_the_space_before_a_text(write_gguf: Write, sentencepiece_keys: dict[str, Any]):
    tokenizer = load(write_gguf(**sentencepiece_keys | {"add_space_prefix": False}))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("abc a")] == ["<s>", "abc", " a"]
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


def test_user_defined_runs_of_spaces_are_tokens_as_in_gemma(write_gguf: Write, sentencepiece_keys: dict[str, Any]):
    tokens, runs = sentencepiece_keys["tokens"], ["  ", "<end_of_turn>"]
    added = {
        "tokens": [*tokens, *runs],
        "scores": [*sentencepiece_keys["scores"], 0.0, 0.0],
        "token_type": [*sentencepiece_keys["token_type"], USER_DEFINED, CONTROL],
        "add_space_prefix": False,
    }
    tokenizer = load(write_gguf(**sentencepiece_keys | added))
    assert tokenizer.encode("ab  cd") == [1, tokens.index("ab"), len(tokens), tokens.index("cd")]
    assert tokenizer.decode(tokenizer.encode("ab  cd")) == "ab  cd"
    assert tokenizer.eos_ids == (2, len(tokens) + 1)


@pytest.fixture(scope="session")
def gemma4(write_gguf: Write, sentencepiece_keys: dict[str, Any]) -> tuple[Tokenizer, Any]:
    """Gemma 4's kind of tokenizer, and transformers' class for it. Merges are not in the order of scores."""
    ends, tokens = ["<turn|>", "<|tool_response>"], [*sentencepiece_keys["tokens"], "\n", "\n\n"]
    merges = ["b c", "a b", "▁ a", "c d", "▁a b", "a bc", "b cd", "▁ ▁", "\n \n"]
    keys = sentencepiece_keys | {
        "model": "gemma4",
        "tokens": [*tokens, *ends],
        "scores": [0.0] * (len(tokens) + 2),
        "token_type": [*sentencepiece_keys["token_type"], NORMAL, NORMAL, CONTROL, USER_DEFINED],
        "merges": merges,
        "add_space_prefix": False,
    }
    vocab = {token: id for id, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    return load(write_gguf(**keys)), GemmaTokenizer(vocab=vocab, merges=pairs, bos_token="<s>", eos_token="</s>")


@given(text=st.text(alphabet="abcdé \n日") | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<")))
def test_gemma4_merges_in_the_order_of_its_file_as_transformers_class(gemma4: tuple[Tokenizer, Any], text: str):
    ours, theirs = gemma4
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


def test_gemma4_begins_texts_and_ends_them_with_a_turn_or_a_call_of_a_tool(gemma4: tuple[Tokenizer, Any]):
    tokenizer, _ = gemma4
    assert tokenizer.encode("ab")[0] == tokenizer.bos_id == 1
    assert [tokenizer.token_text(id) for id in tokenizer.eos_ids] == ["</s>", "<turn|>", "<|tool_response>"]
