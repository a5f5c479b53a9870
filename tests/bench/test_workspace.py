"""The benchmark of prompts that are longer than their lane."""

import argparse
from pathlib import Path
from random import Random

import pytest

from bench import workspace
from bench.workspace import NEEDLE, QUESTION, WorkspaceFigure, measured, needles, shown
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
from tests.engine import tiny


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(Random(0).choices("abcdefgh ", k=30_000)))
    return path


def test_keys_lie_at_depths_of_a_text_and_the_question_is_last(tmp_path: Path, text: Path) -> None:
    tokenizer = Tokenizer.from_directory(byte_tokenizer.save(tmp_path))
    for number, (prompt, key) in enumerate(needles(tokenizer, text, 900, 3)):
        shown = tokenizer.decode(prompt)
        assert len(prompt) == 900
        assert shown.endswith(QUESTION)
        before, _, after = shown.removesuffix(QUESTION).partition(NEEDLE.format(key=key))
        assert len(before) / (len(before) + len(after)) == pytest.approx((number + 0.5) / 3, abs=0.01)


def test_a_bounded_engine_stages_less_than_an_exact_one(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save(byte_tokenizer.save(tmp_path), "Llama", vocab_size=260, max_position_embeddings=2048)
    monkeypatch.setattr(workspace, "locate", lambda model: tmp_path)
    usual = {"model": "any", "tokens": 1600, "workspace": 1024, "needles": 1, "text": text}
    usual |= {"weights": "bf16", "graphs": "off", "stretch": False}
    found = {one: measured(argparse.Namespace(**usual, case=one)) for one in ("short", "bounded", "exact")}
    entry = 3 * 2 * 2 * 32 * 2  # layers, heads, keys and values, elements and their bytes
    assert [one.tokens for one in found.values()] == [1024, 1600, 1600]
    assert found["bounded"].staging_bytes - found["short"].staging_bytes == 1024 * 3 * 2 * 4
    assert found["exact"].staging_bytes - found["short"].staging_bytes == 1024 * entry
    longer = measured(argparse.Namespace(**usual | {"tokens": 5000, "stretch": True}, case="bounded"))
    assert (longer.tokens, longer.staging_bytes) == (5000, found["bounded"].staging_bytes)  # of a context of 2,048
    assert all(one.peak_bytes > 10**8 and one.prefill_s > 0 and one.cpu_s > 0 for one in found.values())


def test_the_table_has_megabytes_seconds_and_needles() -> None:
    line = shown([WorkspaceFigure("bounded", 30_000, 118 * 10**6, 4_000_000_000, 61.25, 120.5, 2 / 3)]).splitlines()[2]
    assert line == "| bounded | 30,000 | 118 MB | 4,000 MB | 61.2 s | 120.5 s | 67% |"
