"""Compile every graph of an engine for an absent GPU: python -m tests.graphs.inductor_without_device llama.

It runs in its own process, because it replaces torch's queries of a CUDA device; torch for the CPU is enough. Inductor
lowers each graph for an H100, Triton compiles its kernels, and the result is called once on fake tensors, which
launches nothing. Prints one line per graph: its name, and how many kernels it launches.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._C._dynamo.guards as guards
import torch._inductor.config as inductor
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.benchmarking import Benchmarker, InductorBenchmarker
from torch._subclasses.fake_tensor import FakeTensor
from triton.runtime import driver

from ringkv.engine.build import assemble
from ringkv.engine.load import ModelWeights
from ringkv.graphs.graph import Graph, StaticFunction
from ringkv.graphs.inductor import OPTIONS
from ringkv.models.config import load_config
from ringkv.models.weights import Declared
from tests.engine import tiny
from tests.engine.test_golden import MODELS
from tests.fake_cuda import fake_cuda
from tests.kernels.compiled import Absent

H100 = SimpleNamespace(
    name="NVIDIA H100",
    gcnArchName="",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    is_integrated=False,
)


def always(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (
        torch.cuda,
        {
            "get_device_properties": always(H100),
            "get_device_capability": always((9, 0)),
            "is_bf16_supported": always(True),
            "device_count": always(1),
            "current_device": always(0),
            "_exchange_device": always(0),
            "_maybe_exchange_device": always(0),
            "set_device": always(None),
            "synchronize": always(None),
            "_lazy_init": always(None),
            "get_rng_state": always(torch.zeros(1)),
            "set_rng_state": always(None),
        },
    ),
    (
        CudaInterface,
        {
            "is_available": staticmethod(always(True)),
            "is_bf16_supported": staticmethod(always(True)),
            "get_device_properties": staticmethod(always(H100)),
            "get_compute_capability": staticmethod(always(90)),
            "current_device": staticmethod(always(0)),
            "synchronize": staticmethod(always(None)),
            "exchange_device": staticmethod(always(0)),
            "maybe_exchange_device": staticmethod(always(0)),
            "get_raw_stream": staticmethod(always(0)),
        },
    ),
    (
        CudaInterface.Worker,
        {"get_device_properties": staticmethod(always(H100)), "current_device": staticmethod(always(0))},
    ),
    (torch._C, {"_cuda_getCurrentRawStream": always(0)}),
    (triton_helpers, {"set_driver_to_gpu": always(None)}),
    (
        guards,
        {
            "_empty_strided_cuda": lambda size, stride, dtype: torch.empty_strided(
                size, stride, dtype=dtype, device="cuda"
            ),
            "_reinterpret_tensor": lambda tensor, *strided: torch.as_strided(tensor, *strided),
        },
    ),
    (Benchmarker, {"benchmark": always(1.0)}),  # all kernel configurations time the same, so the first is used
    (InductorBenchmarker, {"benchmark": always(1.0)}),
    (FakeTensor, {"data_ptr": always(0)}),
]
INDUCTOR = {
    "compile_threads": 1,
    "use_static_triton_launcher": False,
    "joint_graph_constant_folding": False,  # it computes constants on the device
}


class Compiled:
    """Compiles immediately, as `graphs.inductor` does."""

    builds = 0

    def __init__(self, absent: Absent) -> None:
        self.absent = absent

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        torch.compiler.reset()
        compiled = torch.compile(function.body, fullgraph=True, dynamic=False, options=OPTIONS)
        before = len(self.absent.launches)
        compiled(*example)
        print(name, len(self.absent.launches) - before, flush=True)
        return lambda arguments: compiled(*arguments)


def compile_all(folder: Path, absent: Absent) -> None:
    model = load_config(folder)

    def empty(declared: Declared) -> dict[str, Tensor]:
        return {n: torch.empty(weight.shape, dtype=torch.bfloat16, device="cuda:0") for n, weight in declared.items()}

    layers = [empty(model.layer_weights(i)) for i in range(model.num_layers)]
    weights = ModelWeights(empty(model.shared_weights()), layers)
    assemble(tiny.config(folder, device="cuda:0", chunk=256, dtype="bfloat16"), model, weights, Compiled(absent))


def main(name: str) -> None:
    kind, changes = MODELS[name]
    absent = Absent(90)
    driver.set_active(absent)
    for target, values in REPLACED:
        for attribute, value in values.items():
            setattr(target, attribute, value)
    with TemporaryDirectory() as folder, patch.dict("os.environ", _caches(folder)), inductor.patch(INDUCTOR):
        tiny.save(Path(folder), kind, **changes)
        with fake_cuda(), torch.inference_mode():
            compile_all(Path(folder), absent)


def _caches(folder: str) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}


if __name__ == "__main__":
    main(sys.argv[1])
