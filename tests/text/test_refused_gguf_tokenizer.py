"""GGUF files whose tokenizer is unknown or broken, and those with a tokenizer.json beside them."""

from typing import Any

import pytest
import tokenizers

from ringkv.base.errors import BadWeights, UnsupportedModel
from tests.text.gguf_files import Write, load


@pytest.mark.parametrize("pre", ["poro-chat", None])
def test_an_unknown_rule_is_refused_by_name(write_gguf: Write, byte_level_keys: dict[str, Any], pre: str | None):
    keys = {key: value for key, value in byte_level_keys.items() if key != "pre"} | ({"pre": pre} if pre else {})
    with pytest.raises(UnsupportedModel, match=f"{pre or 'none'}.*smollm"):
        load(write_gguf(**keys))


def test_an_unknown_kind_is_refused_by_name(write_gguf: Write, byte_level_keys: dict[str, Any]):
    with pytest.raises(UnsupportedModel, match=r"'bert'.*gpt2, llama"):
        load(write_gguf(**byte_level_keys | {"model": "bert"}))


def test_a_merge_of_unknown_tokens_is_refused(write_gguf: Write, byte_level_keys: dict[str, Any]):
    with pytest.raises(BadWeights, match="broken"):
        load(write_gguf(**byte_level_keys | {"merges": ["nowhere nothing"]}))


def test_a_gguf_without_a_tokenizer_is_refused(write_gguf: Write):
    with pytest.raises(BadWeights, match="has no tokenizer"):
        load(write_gguf(model="gpt2", pre="gpt-2"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"tokens": 3}, "tokens 3 .*`array`"),
        ({"tokens": [1, 2]}, r"tokens \[1, 2\] .*`str`"),
        ({"token_type": ["a"]}, r"token_type \['a'\] .*`int`"),
        ({"token_type": [1, 1]}, r"2 values of tokenizer\.ggml\.token_type for \d+ tokens"),
        ({"merges": [5]}, r"merges \[5\] .*`str`"),
        ({"model": 7}, "model 7 .*`str`"),
        ({"eos_token_id": "end"}, "eos_token_id 'end' .*`int`"),
        ({"add_bos_token": 3}, "add_bos_token 3 "),
        ({"tokens": ["x" * 40_000]}, "tokens of up to 40,000 characters"),
    ],
)
def test_a_wrong_part_of_a_vocabulary_is_named(
    write_gguf: Write, byte_level_keys: dict[str, Any], wrong: dict[str, Any], named: str
):
    with pytest.raises(BadWeights, match=rf"tiny\.gguf has .*{named}.*download it again"):
        load(write_gguf(**byte_level_keys | wrong))


MARK = "{{ messages }}"


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.ggml.tokens", "tokenizer.ggml.pre"])
def test_a_text_of_the_tokenizer_that_is_not_utf8_is_named(
    write_gguf: Write, byte_level_keys: dict[str, Any], key: str
):
    keys = byte_level_keys | {"tokens": [*byte_level_keys["tokens"][:-1], MARK]}
    path = write_gguf(MARK, **keys | {"pre": "gpt-2" if key != "tokenizer.ggml.pre" else MARK})
    written = path.read_bytes()
    at = written.index(MARK.encode(), written.index(key.encode()))
    path.write_bytes(written[:at] + b"\xe9" + written[at + 1 :])
    with pytest.raises(BadWeights, match=rf"tiny\.gguf has {key}"):
        load(path)


def test_a_text_that_the_tokenizer_does_not_use_may_have_any_bytes(
    write_gguf: Write, byte_level_keys: dict[str, Any], byte_level_inner: tokenizers.Tokenizer
):
    path = write_gguf(**byte_level_keys | {"author": "José"})
    path.write_bytes(path.read_bytes().replace("José".encode(), b"Jos\xe9 "))
    assert load(path).encode("the dog") == byte_level_inner.encode("the dog").ids


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.1, 0.5, 0.9])
def test_a_truncated_gguf_is_refused(write_gguf: Write, byte_level_keys: dict[str, Any], share: float):
    path = write_gguf(**byte_level_keys)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BadWeights, match=r"not a GGUF|truncated"):
        load(path)


def test_a_tokenizer_json_beside_the_gguf_wins(
    write_gguf: Write, byte_level_keys: dict[str, Any], byte_level_inner: tokenizers.Tokenizer
):
    path = write_gguf(**byte_level_keys | {"pre": "poro-chat"})
    byte_level_inner.save(str(path.parent / "tokenizer.json"))
    assert load(path).encode("the dog") == byte_level_inner.encode("the dog").ids


def test_another_models_tokenizer_json_beside_the_gguf_is_refused(
    write_gguf: Write, sentencepiece_keys: dict[str, Any], byte_level_inner: tokenizers.Tokenizer
):
    path = write_gguf(**sentencepiece_keys)
    byte_level_inner.save(str(path.parent / "tokenizer.json"))
    with pytest.raises(BadWeights, match="another model"):
        load(path)


def test_a_broken_tokenizer_json_beside_the_gguf_is_refused(write_gguf: Write, byte_level_keys: dict[str, Any]):
    path = write_gguf(**byte_level_keys)
    (path.parent / "tokenizer.json").write_text("{")
    with pytest.raises(BadWeights, match=r"tokenizer\.json"):
        load(path)
