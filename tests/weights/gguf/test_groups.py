"""Four-bit blocks without dequantising them, against the gguf package's dequantised values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor

from ringkv.engine.build import build
from ringkv.kernels.formats import unpack, unpack_gated
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.gguf.convert import group_bytes, write_config, write_groups, write_weights
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.groups import TYPES, split
from ringkv.weights.group_layout import INT4
from tests.engine import tiny
from tests.weights.tiny_gguf import tiny_model, write_tiny

ROWS, COLUMNS = 6, 512


def values(pairs: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Return scale * q + minimum."""
    q = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(len(pairs), -1, 32).astype(np.float32)
    return (q * scale[..., None] + minimum[..., None]).reshape(len(pairs), -1)  # type: ignore[no-any-return]


def stored(kind: str) -> np.ndarray:  # type: ignore[type-arg]
    """Return blocks of this type. The package cannot make Q4_K, so these are random with small scales."""
    rng = np.random.default_rng(0)
    if kind != "Q4_K":
        return quantize(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32), Type[kind])
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // 256, 144), dtype=np.uint8)
    blocks[..., :4] = rng.uniform(0.001, 0.01, (ROWS, COLUMNS // 256, 2)).astype("<f2").view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", [name for name, grouped in TYPES.items() if grouped.layout is INT4])
def test_groups_have_the_values_of_the_blocks(kind: str) -> None:
    rows = stored(kind)
    want = dequantize(rows, Type[kind])
    np.testing.assert_allclose(values(*split(kind, rows)), want, atol=2e-3 * np.abs(want).max(), rtol=0)


def test_a_vector_in_four_bits_is_no_matrix(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.attn_norm.weight", quantize(np.ones(64, np.float32), Type.Q4_0), raw_dtype=Type.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf = GGUF(tmp_path / "x.gguf")
    write_groups(gguf, tmp_path)
    assert (group_bytes(gguf), (tmp_path / "int4.groups").exists()) == (0, False)


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A tiny Llama in Q4_1, whose matrices are whole panels."""
    model = tiny_model("Llama", hidden_size=64, intermediate_size=96, head_dim=16, num_key_value_heads=2)
    gguf = GGUF(write_tiny(tmp_path / "tiny.gguf", model, Type.Q4_1))
    folder = tmp_path / "converted"
    folder.mkdir()
    write_config(gguf, folder)
    write_weights(gguf, folder)
    write_groups(gguf, folder)
    header = int.from_bytes((folder / "int4.groups").read_bytes()[:8], "little")
    assert (folder / "int4.groups").stat().st_size == 8 + header + group_bytes(gguf)
    return folder


def test_an_int4_engine_has_the_values_of_the_file(converted: Path) -> None:
    engine = build(tiny.config(converted, weights="int4", dtype="bfloat16"))
    checkpoint, layer = Checkpoint(converted), engine.batch.weights.layers[1]
    at = "model.layers.1"
    want = {
        "qkv": [f"{at}.self_attn.{name}_proj.weight" for name in "qkv"],
        "down": [f"{at}.mlp.down_proj.weight"],
        "gate_up": [f"{at}.mlp.{name}_proj.weight" for name in ("gate", "up")],
    }
    for name, parts in want.items():
        whole = torch.cat([_dequantised(checkpoint.groups(part)) for part in parts])
        found = unpack_gated(layer[name]) if name == "gate_up" else unpack(layer[name])
        assert torch.equal(found.bfloat16(), whole.bfloat16()), name


def test_without_stored_groups_the_weights_are_quantised(converted: Path) -> None:
    exact = build(tiny.config(converted, weights="int4", dtype="bfloat16")).batch.weights.layers[0]["qkv"]
    (converted / "int4.groups").unlink()
    assert Checkpoint(converted).groups("model.layers.0.mlp.down_proj.weight") is None
    near = build(tiny.config(converted, weights="int4", dtype="bfloat16")).batch.weights.layers[0]["qkv"]
    torch.testing.assert_close(unpack(near), unpack(exact), atol=0.01, rtol=0.02)


def test_tables_and_matrices_of_more_bits_have_no_groups(tmp_path: Path, converted: Path) -> None:
    assert Checkpoint(converted).groups("model.embed_tokens.weight") is None
    gguf = GGUF(write_tiny(tmp_path / "large.gguf", tiny_model("Llama"), Type.Q8_0))
    write_groups(gguf, tmp_path)
    assert not (tmp_path / "int4.groups").exists()


def _dequantised(found: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
    assert found is not None
    q, scale, minimum = (one.float() for one in found)
    return (q.unflatten(1, (-1, 32)) * scale[..., None] + minimum[..., None]).flatten(1)
