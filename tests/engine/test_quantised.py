"""An engine with quantised weights: near the one with its weights in bfloat16, in fewer bytes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.config import Activations, Weights
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels.formats import unpack
from ringkv.weights.checkpoint import Checkpoint
from tests.engine import tiny

PROMPT = list(range(3, 150))
STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model all of whose matrices are whole strips, its embedding tied."""
    folder = tmp_path_factory.mktemp("tied")
    tiny.save(folder, "Llama", vocab_size=256, tie_word_embeddings=True)
    return folder


def engine(folder: Path, weights: Weights, activations: Activations = "16-bit") -> LocalEngine:
    """Nothing is evicted: which tokens are kept would differ, too."""
    kv = KVChoice("full", budget=256, select=SnapKV(window=8))
    stored: dict[str, str] = {"weights": weights, "activations": activations}
    return build(tiny.config(folder, **stored, dtype="bfloat16", kv=kv, capacity=256))


def logits(engine: LocalEngine, forced: list[int]) -> Tensor:
    tiny.enter(engine, tiny.request(PROMPT))
    return tiny.decode(engine, STEPS, forced=forced)[1]


# A rounding step is 1/127 of a row's largest number, or 1/15 of a group's range: numbers drawn from a normal curve are
# off by 0.9% or 9%. A few layers add up, and a matrix that is packed or read wrongly is off by as much as there is.
@pytest.mark.parametrize(("weights", "most"), [("int8", 0.06), ("int4", 0.3)])
def test_quantised_weights_give_nearly_the_same_logits(folder: Path, weights: Weights, most: float) -> None:
    tokens = torch.randint(3, 256, (STEPS,)).tolist()
    plain, found = logits(engine(folder, "bf16"), tokens), logits(engine(folder, weights), tokens)
    off = (found - plain).norm() / plain.norm()
    assert 0 < off < most, off


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_int8_activations_change_the_logits_as_little_as_int8_weights_do(folder: Path, weights: Weights) -> None:
    tokens = torch.randint(3, 256, (STEPS,)).tolist()
    plain, found = (logits(engine(folder, weights, activations), tokens) for activations in ("16-bit", "int8"))
    off = (found - plain).norm() / plain.norm()
    assert 0 < off < 0.06, off


def test_matrices_are_stored_in_the_bits_asked_for_and_tables_in_eight(folder: Path) -> None:
    built = engine(folder, "int4")
    layer, shared = built.batch.weights.layers[0], built.batch.weights.shared
    matrices = ("qkv", "output", "gate_up", "down")
    assert {name: layer[name].dtype for name in matrices} == dict.fromkeys(matrices, torch.uint8)
    assert (shared["embed"].dtype, shared["final_norm"].dtype) == (torch.int8, torch.bfloat16)
    numbers = sum(tensor.numel() for tensor in _tensors(folder).values() if tensor.dim() == 2)
    table = 256 * 96
    scales = 4 * 256
    norms = 2 * 96 * 7
    assert built.weight_bytes == (numbers - table) * 5 // 8 + table + scales + norms


def test_an_embedding_is_looked_up_as_it_is_stored(folder: Path) -> None:
    built = engine(folder, "int8")
    found = built.batch.decoder.embed(torch.tensor([7, 255]), built.batch.weights.shared).x
    table = _tensors(folder)["model.embed_tokens.weight"]
    step = table.abs().amax(-1, keepdim=True) / 127
    assert torch.equal(found, unpack(built.batch.weights.shared["embed"])[[7, 255]].bfloat16())
    assert ((found - table[[7, 255]]).abs() <= step[[7, 255]]).all()


def _tensors(folder: Path) -> dict[str, Tensor]:
    checkpoint = Checkpoint(folder)
    found = {name: torch.empty(shape) for name, shape in checkpoint.shapes().items()}
    for name, tensor in found.items():
        checkpoint.read_into(name, tensor)
    return found
