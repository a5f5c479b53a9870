from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize

from bench.peers.weights import rewrite


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_file_type(3)
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("blk.0.attn_q.weight", values)
    writer.add_tensor("blk.0.attn_norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "step"), [("f16", 2**-10), ("bf16", 2**-7)])
def test_matrices_are_rounded_to_16_bits_and_vectors_are_not(
    source: Path, tmp_path: Path, kind: str, step: float
) -> None:
    target = tmp_path / "target.gguf"
    rewrite(source, target, kind)
    old, new = ({one.name: one for one in GGUFReader(path).tensors} for path in (source, target))
    matrix, vector = "blk.0.attn_q.weight", "blk.0.attn_norm.weight"
    assert new[matrix].tensor_type.name.lower() == kind
    np.testing.assert_allclose(dequantize(new[matrix].data, new[matrix].tensor_type), old[matrix].data, rtol=step)
    assert not np.array_equal(dequantize(new[matrix].data, new[matrix].tensor_type), old[matrix].data)
    np.testing.assert_array_equal(new[vector].data, old[vector].data)


def test_metadata_is_copied_except_the_file_type(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    rewrite(source, target, "f16")
    fields = GGUFReader(target).fields
    assert fields["general.architecture"].contents() == "llama"
    assert fields["llama.block_count"].contents() == 2
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert fields["general.file_type"].contents() == 1
