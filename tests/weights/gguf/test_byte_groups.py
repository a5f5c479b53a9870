"""Blocks of 5, 6 and 8 bits without dequantising them, against the gguf package's dequantised values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from torch import Tensor

from ringkv.base.config import Activations
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.byte_groups import ByteGroups
from ringkv.kernels.formats import FORMATS, unpack, unpack_gated
from ringkv.plan.footprint import weight_bytes
from ringkv.plan.report import PlanRequest, find_shape, report
from ringkv.plan.stored_bits import stored_as
from ringkv.weights.gguf.convert import group_bytes, write_config, write_groups, write_weights
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.groups import TYPES, split
from tests.engine import tiny
from tests.weights.tiny_gguf import tiny_model, write_tiny

ROWS, COLUMNS, LAYERS = 32, 512, 2
FACTORS = {"Q8_0": (0,), "Q5_0": (0,), "Q5_1": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where blocks have float16


def blocks(kind: str) -> np.ndarray[Any, Any]:
    """Return rows of random blocks, with every integer, and small factors of either sign."""
    rng, size = np.random.default_rng(0), TYPES[kind].block_bytes
    count = COLUMNS // (256 if kind.endswith("_K") else 32)
    found = rng.integers(0, 256, (ROWS, count, size), dtype=np.uint8)
    for at in FACTORS[kind]:
        found[..., at : at + 2] = rng.uniform(-0.01, 0.01, (ROWS, count, 1)).astype("<f2").view(np.uint8)
    return found.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("form", ["int8-groups", "int8-groups-a8"])
def test_a_packed_matrix_has_exactly_the_values_of_its_blocks(kind: str, form: str) -> None:
    rows = blocks(kind)
    groups = ByteGroups(*(torch.from_numpy(part.copy()) for part in split(kind, rows)))
    assert torch.equal(unpack(FORMATS[form].pack(groups)), torch.from_numpy(dequantize(rows, Type[kind])))


class Converted:
    """A tiny Llama from a GGUF, in Hugging Face layout."""

    def __init__(self, folder: Path, kind: Type, others: dict[str, Type] | None = None) -> None:
        model = tiny_model("Llama", hidden_size=64, intermediate_size=96, head_dim=16, num_hidden_layers=LAYERS)
        self.gguf = GGUF(write_tiny(folder / "tiny.gguf", model, kind, others=others))
        self.folder = folder / "converted"
        self.folder.mkdir()
        for write in (write_config, write_weights, write_groups):
            write(self.gguf, self.folder)

    def engine(self, weights: str, activations: Activations = "16-bit") -> LocalEngine:
        kv = KVChoice("full", budget=256, select=SnapKV(window=8))
        stored: dict[str, str] = {"weights": weights, "activations": activations}
        return build(tiny.config(self.folder, **stored, dtype="bfloat16", kv=kv, capacity=256))

    def matrix(self, *names: str) -> Tensor:
        """Return the dequantised matrices of the last layer, stacked, with rows of heads as Hugging Face has them."""
        each = []
        for name in names:
            rows = np.concatenate(list(self.gguf.rows(f"blk.{LAYERS - 1}.{name}.weight")))
            heads = {"attn_q": 4, "attn_k": 2}.get(name)
            each.append(
                rows if heads is None else rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
            )
        return torch.from_numpy(np.concatenate(each))


MATRICES = {
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "output": ("attn_output",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q5_1"])
def test_an_int8_engine_has_exactly_the_values_of_the_file(kind: str, tmp_path: Path) -> None:
    made = Converted(tmp_path, Type[kind])
    header = int.from_bytes((made.folder / "int8.groups").read_bytes()[:8], "little")
    assert (made.folder / "int8.groups").stat().st_size == 8 + header + group_bytes(made.gguf)
    engine = made.engine("int8")
    layer = engine.batch.weights.layers[-1]
    for name, parts in MATRICES.items():
        found = unpack_gated(layer[name]) if name == "gate_up" else unpack(layer[name])
        assert torch.equal(found, made.matrix(*parts)), name
    bits = 10 if TYPES[kind].has_minimums else 9
    elements = LAYERS * sum(made.matrix(*parts).numel() for parts in MATRICES.values())
    table, scales, norms = 2 * 96 * 64, 4 * 2 * 96, 64 * (2 * LAYERS + 1)
    assert engine.weight_bytes == elements * bits // 8 + table + scales + 2 * norms
    shape = find_shape(str(made.folder))
    planned = weight_bytes(shape, stored_as(made.folder, "int8"))
    assert planned == (elements + norms) * bits // 8 + table  # scales and norms are too small to count
    for one in (shape, find_shape(str(tmp_path / "tiny.gguf"))):
        found = report(one, PlanRequest(weights="int8"))
        assert found.weight_bytes == found.served_bytes["int8"] == planned


def test_matrices_that_share_a_graph_share_a_format_and_four_bits_stay_as_they_are(tmp_path: Path) -> None:
    made = Converted(tmp_path, Type.Q4_1, {"blk.1.attn_v": Type.Q8_0, "blk.0.ffn_down": Type.Q8_0})
    first, last = made.engine("int8").batch.weights.layers
    assert {name: (one.shape, one.dtype) for name, one in first.items()} == {
        name: (one.shape, one.dtype) for name, one in last.items()
    }
    assert {name: last[name].dim() for name in MATRICES} == {"qkv": 5, "output": 3, "gate_up": 3, "down": 5}
    torch.testing.assert_close(unpack(last["qkv"]), made.matrix(*MATRICES["qkv"]), atol=1e-6, rtol=2**-10)
    assert torch.equal(unpack(last["qkv"])[-32:], made.matrix("attn_v"))


@pytest.mark.parametrize("activations", ["16-bit", "int8"])
def test_logits_are_near_those_of_the_dequantised_model(activations: Activations, tmp_path: Path) -> None:
    made = Converted(tmp_path, Type.Q8_0)
    tokens, prompt = torch.randint(3, 96, (40,)).tolist(), list(range(3, 90))

    def logits(engine: LocalEngine) -> Tensor:
        tiny.enter(engine, tiny.request(prompt))
        return tiny.decode(engine, len(tokens), forced=tokens)[1]

    plain, found = logits(made.engine("bf16")), logits(made.engine("int8", activations))
    assert 0 < (found - plain).norm() / plain.norm() < {"16-bit": 0.02, "int8": 0.06}[activations]
