"""Every graph of an engine on a GPU, traced as torch.compile traces it, on fake CUDA tensors: no device is needed.

Inductor's own part, which compiles what was traced, needs a device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ringkv.base.cache_spec import IN_CHUNKS, PLAIN_SLOTS, PageFormat, PlaneFormat, SlotFormat
from ringkv.base.sampling import SamplerTier
from ringkv.engine.build import assemble
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import ModelWeights
from ringkv.engine.passes import PromptPiece
from ringkv.engine.sizes import BySize, Sizes
from ringkv.graphs.graph import Backend, Eager, Graph, StaticFunction
from ringkv.kernels import prefill_attend
from ringkv.kernels.linear import linear
from ringkv.kernels.prefill_attend import Segment
from ringkv.kernels.slots import flat
from ringkv.models.config import load_config
from ringkv.models.weights import Declared
from tests.engine import tiny
from tests.engine.test_golden import GEMMA4
from tests.engine.test_golden import MODELS as GOLDEN
from tests.fake_cuda import fake_cuda

CHUNK = 256
FAMILIES = ("qwen2", "qwen3", "gemma3", "qwen3-moe", "gpt-oss", "deepseek-v3")


class Traced:
    """Traces each function with this start of its name, on its example, as `graphs.inductor` compiles it."""

    def __init__(self, *starts: str) -> None:
        self.builds = 0
        self.starts = starts or ("",)
        self.outputs: dict[str, Sequence[Tensor]] = {}

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        self.builds += 1
        if not name.startswith(self.starts):
            return function.body
        torch.compiler.reset()  # every graph of a kind comes from one code object, which torch compiles so often only
        traced = torch.compile(function.body, fullgraph=True, dynamic=False, backend="aot_eager")
        self.outputs[name] = traced(*example)
        return lambda arguments: traced(*arguments)


@pytest.fixture(autouse=True)
def own_traces() -> Iterator[None]:
    yield
    torch.compiler.reset()


def assembled(
    folder: Path,
    dtype: torch.dtype,
    backend: Backend,
    device: str = "cuda:0",
    chunk: int = CHUNK,
    slots: SlotFormat = PLAIN_SLOTS,
) -> LocalEngine:
    model = load_config(folder).with_slots(slots)

    def made(declared: Declared) -> dict[str, Tensor]:
        return {name: torch.empty(weight.shape, dtype=dtype, device="cuda:0") for name, weight in declared.items()}

    layers = [made(model.layer_weights(i)) for i in range(model.num_layers)]
    weights = ModelWeights(made(model.shared_weights()), layers)
    resident = slots.pages.resident if slots.pages else 0
    drafts = 0 if model.shares_caches or slots.encoding == IN_CHUNKS or slots.queries or resident else 3
    chosen = {"device": device, "chunk": chunk, "dtype": str(dtype).removeprefix("torch."), "speculate": drafts}
    config = tiny.config(folder, **chosen, slot_format=slots)
    return assemble(config, model, weights, backend)


def test_products_are_summed_in_float32_on_cuda(tmp_path: Path) -> None:
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True
    tiny.save(tmp_path, "Llama")
    with fake_cuda(), torch.inference_mode():
        assembled(tmp_path, torch.bfloat16, Eager(), device="cuda")
    assert not products.allow_bf16_reduced_precision_reduction
    assert not products.allow_fp16_reduced_precision_reduction


class Products(TorchDispatchMode):
    """Notes the dtype that each matrix product gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.linear):
            self.seen.append(out.dtype)
        return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_results_are_not_rounded_to_the_weights_dtype_on_cuda(dtype: torch.dtype) -> None:
    with fake_cuda(), Products() as products:
        x, weight = (torch.empty(n, 32, dtype=dtype, device="cuda") for n in (3, 64))
        for bias in (None, torch.empty(64, dtype=dtype, device="cuda")):
            assert linear(x, weight, bias, dtype=torch.float32).dtype == torch.float32
            assert linear(x, weight, bias).dtype == dtype
    assert products.seen == [torch.float32, dtype] * 2


def test_a_piece_of_a_prompt_is_prefilled_without_waiting_for_the_device(tmp_path: Path) -> None:
    """Its tokens are copied from pinned memory, and nothing is copied back."""
    tiny.save(tmp_path, "Llama")
    copies: list[tuple[str, str, bool]] = []
    pins: list[Tensor] = []

    def pinned(tensor: Tensor) -> Tensor:
        pins.append(tensor)
        return tensor

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].device != out.device:
                copies.append((args[0].device.type, out.device.type, kwargs["non_blocking"]))
            return out

    with fake_cuda(), torch.no_grad():
        passes = assembled(tmp_path, torch.bfloat16, Eager()).lanes._passes
        graphs: dict[str, Graph] = {"global": lambda arguments: arguments[:1]}  # attention itself is not looked at
        passes.programs = replace(passes.programs, passes=BySize(Sizes((128,)), {128: graphs}))
        with patch.object(Tensor, "pin_memory", pinned), Copies():
            passes.run([PromptPiece(range(3, 90), 0, 0, 87)])
    assert copies == [("cpu", "cuda", True)] * 2  # tokens and positions
    assert len(pins) == 2


@pytest.mark.slow  # traces whole models
def test_graphs_of_layers_that_share_caches_trace_for_cuda(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma4", **GEMMA4)
    names = ("prefill-local-256", "prefill-global-shared-256", "decode-local-shared-3", "decode-global-3", "head-3")
    traced = Traced()

    class Some(Eager):
        def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
            return (traced if name in names else super()).make(name, function, example)

    with fake_cuda(), torch.inference_mode():
        assembled(tmp_path, torch.bfloat16, Some())
    assert [tuple(traced.outputs[name][0].shape) for name in names] == [(256, 96)] * 2 + [(3, 96)] * 2 + [(3, 199)]


@pytest.mark.slow  # traces whole models
def test_every_graph_of_an_engine_traces_for_cuda(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama")
    traced = Traced()
    with fake_cuda(), torch.inference_mode():
        assembled(tmp_path, torch.bfloat16, traced)
    layers = {"prefill-global-128", "prefill-global-256", "decode-global-3", "decode-global-3x4"}
    samplers = {f"sample-{tier.name.lower()}" for tier in SamplerTier}
    samplers |= {f"sample-{kind}-drafts" for kind in ("greedy", "temperature", "truncated")}
    assert {*traced.outputs} == layers | samplers | {"head-3", "head-12"}
    assert {str(t.device) for outputs in traced.outputs.values() for t in outputs} == {"cuda:0"}
    assert {traced.outputs[name][0].dtype for name in layers} == {torch.bfloat16}
    assert traced.outputs["head-3"][0].dtype == torch.float32


@pytest.mark.slow  # traces whole models
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.bfloat16) for name in FAMILIES), ("llama", torch.float32)])
def test_layers_of_every_structure_trace_for_cuda(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A trace has no operation whose shape depends on data, as the choice of experts in plain torch has."""
    kind, changes = GOLDEN[name]
    tiny.save(tmp_path, kind, **changes)
    traced = Traced("prefill", "decode")
    with fake_cuda(), torch.inference_mode():
        engine = assembled(tmp_path, dtype, traced, chunk=128)
    sizes = {"prefill": ("128",), "decode": ("3", "3x4")}
    names = {f"{way}-{kind}-{size}" for kind in engine.model.kinds for way in sizes for size in sizes[way]}
    assert {*traced.outputs} == names
    assert {(str(t.device), t.dtype) for out in traced.outputs.values() for t in out} == {("cuda:0", dtype)}


@pytest.mark.parametrize(
    "slots",
    [
        SlotFormat("int8"),
        SlotFormat("int4"),
        SlotFormat("zipcache"),
        SlotFormat(reading="ragged"),
        SlotFormat("int8", "ragged"),
        SlotFormat("int4", "ragged"),
        SlotFormat(reading=PageFormat(16)),
        SlotFormat(queries=16),
    ],
    ids=lambda slots: f"{slots.encoding}-{type(slots.reading).__name__}-{slots.queries}",
)
def test_steps_trace_for_cuda_with_each_encoding_and_reading(slots: SlotFormat, tmp_path: Path) -> None:
    """Encoded pages have no kernel for CUDA."""
    tiny.save(tmp_path, "Llama")
    traced = Traced("decode")
    with fake_cuda(), torch.inference_mode():
        (body,) = assembled(tmp_path, torch.bfloat16, traced, slots=slots).batch.bodies
    assert body.group.slots == slots
    sizes = ("3",) if slots.encoding == IN_CHUNKS or slots.queries else ("3", "3x4")  # those take no drafts
    assert {name.rpartition("-")[2] for name in traced.outputs} == {*sizes}
    assert len(traced.outputs) == len(sizes)
    assert {(str(t.device), t.dtype) for out in traced.outputs.values() for t in out} == {("cuda:0", torch.bfloat16)}


@pytest.mark.slow  # traces whole models
@pytest.mark.parametrize("kv_format", ["int8", "int4"])
def test_steps_with_encoded_latents_trace_for_cuda(kv_format: PlaneFormat, tmp_path: Path) -> None:
    kind, changes = GOLDEN["deepseek-v3"]
    tiny.save(tmp_path, kind, **changes)
    traced = Traced(*(f"decode-{kind}-{kv_format}" for kind in load_config(tmp_path).kinds))
    with fake_cuda(), torch.inference_mode():
        assembled(tmp_path, torch.bfloat16, traced, slots=SlotFormat(kv_format, skip=1))
    assert [name.rpartition("-")[2] for name in sorted(traced.outputs)] == ["3", "3x4"]
    assert {(str(t.device), t.dtype) for out in traced.outputs.values() for t in out} == {("cuda:0", torch.bfloat16)}


def test_pieces_of_prompts_whose_heads_begin_at_different_places_trace_for_cuda(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama")
    traced = Traced("prefill")
    with fake_cuda(), torch.inference_mode():
        staging = assembled(tmp_path, torch.bfloat16, traced, slots=SlotFormat(reading="ragged")).lanes.staging
        assert {str(one.device) for one in staging.tables(0, [Segment(0, 9, 0, 0, 0, 9)])} == {"cpu"}
    assert {*traced.outputs} == {"prefill-global-128", "prefill-global-256"}
    assert {(str(t.device), t.dtype) for out in traced.outputs.values() for t in out} == {("cuda:0", torch.bfloat16)}


def test_heads_that_begin_at_different_places_attend_on_cuda_one_after_the_other() -> None:
    """Each reads its own keys alone. Heads that begin together attend together."""
    read: list[int] = []

    class Keys(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name() == "aten::_scaled_dot_product_flash_attention":
                read.append(args[1].shape[1] * args[1].shape[2])
            return func(*args, **(kwargs or {}))

    attend = prefill_attend.by_head(partial(prefill_attend._flash_on_cuda, scale=0.1))
    with fake_cuda(), torch.inference_mode(), Keys():
        shapes = (48, 2, 3, 64), (2, 68, 64), (2, 68, 64)
        tensors = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        for begins in ((), (0, 17)):
            out, lse = attend(prefill_attend.Piece(*tensors, start=20, begins=begins))
            assert (out.shape, lse.shape) == ((48, 2, 3, 64), (48, 2, 3))
    assert read == [2 * 68, 68, 51]


def test_steps_that_recall_pages_from_the_host_trace_for_cuda(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama")
    traced = Traced("decode")

    def on_host(like: Tensor) -> Any:
        return lambda shape: torch.zeros(*shape, dtype=like.dtype)

    with fake_cuda(), torch.inference_mode(), patch("ringkv.cache.tier.pinned", on_host):
        engine = assembled(tmp_path, torch.bfloat16, traced, slots=SlotFormat(reading=PageFormat(16, resident=3)))
    (body,) = engine.batch.bodies
    assert {one.device.type for one in body.planes} == {"cpu"}
    assert {tensor.device.type for tensor in flat(body.slots.reading)} == {"cuda"}
    assert {*traced.outputs} == {"decode-global-3"}
    assert {(str(t.device), t.dtype) for out in traced.outputs.values() for t in out} == {("cuda:0", torch.bfloat16)}
