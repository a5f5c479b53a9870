"""What capture requires of a step, without a GPU: on torch's "meta" device tensors have shapes but no data.

A step that a CUDA graph can hold reads no value on the host, copies nothing between host and device, and has no shape
that depends on a value.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ringkv.base.sampling import SamplerTier
from ringkv.engine.build import assemble
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import ModelWeights
from ringkv.graphs.graph import Eager
from ringkv.models.config import load_config
from ringkv.models.weights import Declared
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal", "item")


class Watch(TorchDispatchMode):
    """Records every operator that a CUDA graph cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.faults = 0, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in tensors}
        self.seen += 1
        if devices - {"meta"} or func._schema.name.removeprefix("aten::") in WAITS:
            self.faults.append(f"{func} on {sorted(devices)}")
        return out


@pytest.fixture(params=[("Llama", {}), ("Qwen2", {}), ("Qwen3", {}), ("Gemma3", GEMMA3)], ids=itemgetter(0))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> LocalEngine:
    kind, changes = request.param
    tiny.save(tmp_path, kind, **changes)
    model = load_config(tmp_path)

    def empty(declared: Declared) -> dict[str, torch.Tensor]:
        return {name: torch.empty(weight.shape, device="meta") for name, weight in declared.items()}

    layers = [empty(model.layer_weights(i)) for i in range(model.num_layers)]
    weights = ModelWeights(empty(model.shared_weights()), layers)
    return assemble(tiny.config(tmp_path, device="meta"), model, weights, Eager())


def faults(step: Callable[[], None]) -> list[str]:
    with torch.inference_mode(), Watch() as watch:
        step()
    assert watch.seen > 10
    return watch.faults


def test_a_decode_step_never_waits_for_the_device(engine: LocalEngine) -> None:
    assert faults(partial(engine.batch._forward, 3)) == []


@pytest.mark.parametrize("tier", list(SamplerTier))
def test_sampling_never_waits_for_the_device(engine: LocalEngine, tier: SamplerTier) -> None:
    assert faults(partial(engine.batch._sample, tier)) == []


def test_a_copy_from_the_host_is_noticed(engine: LocalEngine) -> None:
    """Shows that the tests above can fail."""

    def step() -> None:
        engine.batch._forward(3)
        engine.batch.tokens.copy_(torch.zeros(3, dtype=torch.int64))

    assert len(faults(step)) > 0


def test_a_copy_to_the_host_is_noticed(engine: LocalEngine) -> None:
    with pytest.raises(Exception, match="meta"), torch.inference_mode():
        engine.batch.logits.cpu()
