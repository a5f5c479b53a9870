"""A checkpoint whose config.json ties the vocabulary projection to the embedding, whatever its files hold."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ringkv.base.json_file import read_object
from ringkv.engine.build import build
from ringkv.models.config import load_config
from tests.engine import kept, tiny

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def configured(folder: Path, **changes: Any) -> None:
    raw = read_object(folder / "config.json") | changes
    (folder / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Granite"])
def test_the_head_of_the_files_counts_if_config_json_ties_it(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tiny.save(tmp_path, kind)
    configured(tmp_path, tie_word_embeddings=True)
    prompt = tiny.prompt(20)
    logits = tiny.stage(build(tiny.config(tmp_path)), tiny.request(prompt))
    torch.testing.assert_close(logits, kept.logits(theirs, prompt)[-1], atol=1e-4, rtol=1e-4)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert HEAD in warning.getMessage()


def test_a_head_that_repeats_the_embedding_stays_tied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.save(tmp_path, "Llama", tie_word_embeddings=True)
    stored = load_file(tmp_path / "model.safetensors")
    assert HEAD not in stored
    save_file(stored | {HEAD: stored[EMBEDDING].clone()}, tmp_path / "model.safetensors")
    assert load_config(tmp_path).tied_embeddings
    build(tiny.config(tmp_path))
    assert not caplog.records


@pytest.mark.parametrize("name", ["lm_head.qweight", "lm_head.weight_packed"])
def test_a_quantised_head_is_a_head(name: str, tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", tie_word_embeddings=True)
    save_file({name: torch.zeros(4, 4, dtype=torch.int32)}, tmp_path / "model-head.safetensors")
    assert not load_config(tmp_path).tied_embeddings


@pytest.mark.parametrize("change", ["other dtype", "last value"])
def test_a_head_is_compared_to_its_last_value(change: str, tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", tie_word_embeddings=True)
    stored = load_file(tmp_path / "model.safetensors")
    head = stored[EMBEDDING].clone()
    if change == "last value":
        head[-1, -1] += 1
    else:
        head = head.double()
    save_file(stored | {HEAD: head}, tmp_path / "model.safetensors")
    assert not load_config(tmp_path).tied_embeddings


def test_a_corrupt_file_is_left_to_the_loader(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", tie_word_embeddings=True)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    assert load_config(tmp_path).tied_embeddings
