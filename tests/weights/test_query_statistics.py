"""Statistics of queries as files."""

from pathlib import Path

import pytest
import torch

from ringkv.base.errors import BadCache
from ringkv.weights.query_statistics import LayerSums, QueryStatistics, path_of, read, write
from tests.engine import tiny


def test_the_file_of_a_model_has_another_name_if_its_weights_change(tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    tiny.save(model, "Llama")
    before = path_of(model, cache)
    assert before == path_of(model, cache)
    assert before.parent == cache / "calibrated"
    assert before.name.startswith("model-")
    tiny.save(model, "Llama", num_hidden_layers=2)
    assert path_of(model, cache) != before


def test_a_moved_model_keeps_its_statistics(tmp_path: Path) -> None:
    tiny.save(tmp_path / "a" / "model", "Llama")
    before = path_of(tmp_path / "a" / "model", tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert path_of(tmp_path / "b" / "model", tmp_path) == before


def test_sums_are_added_by_layer_and_read_as_they_were_written(tmp_path: Path) -> None:
    each = [
        {at: LayerSums(torch.randn(2, 3, 8).double(), torch.rand(2, 3, 4).double()) for at in (1, 12)} for _ in "ab"
    ]
    whole = QueryStatistics("text").plus(5, each[0]).plus(3, each[1])
    write(tmp_path / "new" / "file.safetensors", whole)
    found = read(tmp_path / "new" / "file.safetensors")
    assert found is not None
    assert (found.source, found.tokens, sorted(found.layers)) == ("text", 8, [1, 12])
    for at in (1, 12):
        for mean, first, second in zip(found.means(at), each[0][at], each[1][at], strict=True):
            torch.testing.assert_close(mean, ((first + second) / 8).float())


def test_a_file_that_is_missing_is_none_and_one_that_is_broken_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    assert read(path) is None
    for content in (b"", b"not safetensors", b"\2" + bytes(7) + b"{}"):
        path.write_bytes(content)
        with pytest.raises(BadCache, match=r"cannot be read .*; delete it, and run `ringkv calibrate` again"):
            read(path)
