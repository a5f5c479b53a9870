"""Every graph of an engine on a GPU, traced as torch.compile traces it, on fake CUDA tensors: no device is needed.

Inductor's own part, which compiles what was traced, needs a device.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.sampling import Effort
from ringkv.engine.build import assemble
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import ModelWeights
from ringkv.engine.programs import sizes
from ringkv.graphs.graph import Function, Graph
from ringkv.models.config import load_config
from ringkv.models.tensors import Parts, layer_tensors, shared_tensors
from tests.engine import tiny
from tests.fake_cuda import fake_cuda

CHUNK = 128


class Traced:
    """Traces each function at once, on its example, as `graphs.inductor` compiles it."""

    def __init__(self) -> None:
        self.builds = 0
        self.outputs: dict[str, Sequence[Tensor]] = {}

    def make(self, name: str, function: Function, example: Sequence[Tensor]) -> Graph:
        self.builds += 1
        traced = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")
        self.outputs[name] = traced(*example)
        return lambda arguments: traced(*arguments)


@pytest.fixture(autouse=True)
def own_traces() -> Iterator[None]:
    yield
    torch.compiler.reset()


def assembled(folder: Path, dtype: torch.dtype, traced: Traced) -> LocalEngine:
    model = load_config(folder)

    def made(parts: Parts) -> dict[str, Tensor]:
        shapes = {name: (sum(part.shape[0] for part in each), *each[0].shape[1:]) for name, each in parts.items()}
        return {name: torch.empty(shape, dtype=dtype, device="cuda:0") for name, shape in shapes.items()}

    layers = [made(layer_tensors(model, i)) for i in range(model.num_layers)]
    weights = ModelWeights(made(shared_tensors(model)), layers)
    config = tiny.config(folder, device="cuda:0", chunk=CHUNK, dtype=str(dtype).removeprefix("torch."))
    return assemble(config, model, weights, traced)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("Llama", torch.bfloat16), ("Llama", torch.float32), ("Qwen2", torch.bfloat16), ("Qwen3", torch.bfloat16)],
)
def test_every_graph_of_an_engine_traces_for_cuda(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tiny.save(tmp_path, kind)
    traced = Traced()
    with fake_cuda(), torch.inference_mode():
        assembled(tmp_path, dtype, traced)
    assert len(traced.outputs) == traced.builds == len(sizes(CHUNK)) + len(Effort) + 2  # a decode step, the head
    assert {str(t.device) for outputs in traced.outputs.values() for t in outputs} == {"cuda:0"}
    assert {name: traced.outputs[name][0].dtype for name in ("prefill-128", "decode-3", "head-3")} == {
        "prefill-128": dtype,
        "decode-3": dtype,
        "head-3": torch.float32,
    }
