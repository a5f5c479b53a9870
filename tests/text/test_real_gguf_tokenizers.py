"""Tokenizers of real GGUF files, against counts of the original tokenizers."""

import json
import unicodedata
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.text.tokenizer import Tokenizer


class Real(NamedTuple):
    tokenizer: Tokenizer
    counted: str  # the field of a LongBench record that holds the original tokenizer's count
    form: str  # the Unicode form of decoded text


@pytest.fixture(scope="session", params=["smollm2", "qwen"])
def real(request: pytest.FixtureRequest) -> Real:
    tokenizer = Tokenizer.from_directory(request.getfixturevalue(f"{request.param}_text"))
    return Real(tokenizer, *{"smollm2": ("smol_tokens", ""), "qwen": ("qwen_tokens", "NFC")}[request.param])


def test_counts_equal_those_of_the_original_tokenizer(real: Real, texts: Path):
    files = sorted((texts / "longbench").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    if not records:
        pytest.skip(f"no LongBench samples in {texts / 'longbench'}")
    ids = real.tokenizer.encode_batch([record["prompt"] for record in records])
    assert [len(one) for one in ids] == [record[real.counted] for record in records]


def test_prose_and_code_round_trip(real: Real, texts: Path):
    files = [texts / "text" / "wikitext-2_test.txt", *sorted((texts / "code").glob("*.jsonl"))]
    if missing := [file.name for file in files if not file.is_file()]:
        pytest.skip(f"{texts} lacks {', '.join(missing)}")
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert real.tokenizer.decode(real.tokenizer.encode(text), skip_special_tokens=False) == text


# SmolLM2 has no token for some control characters, nor for the lead byte of U+40000 and beyond.
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=0x3FFFF, exclude_categories=["Cs"])))
def test_any_text_round_trips(real: Real, text: str):
    normal = unicodedata.normalize(real.form, text) if real.form else text
    assert real.tokenizer.decode(real.tokenizer.encode(text), skip_special_tokens=False) == normal
