"""Experts and routers on the device against the torch references; they never wait for the host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from ringkv.base.router import Router
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.experts import experts, reference
from ringkv.kernels.norm import RMSNorm
from ringkv.kernels.route import route
from ringkv.kernels.slots import mapped

pytestmark = pytest.mark.device
EPS = 1e-5
SHAPES = {  # experts, chosen, hidden, between, activation
    "mixtral": (8, 2, 1024, 3584, "silu"),
    "qwen3-moe": (128, 8, 2048, 768, "silu"),
    "gpt-oss": (32, 4, 2880, 2880, "clamped_swiglu"),
    "odd": (5, 3, 100, 72, "gelu_tanh"),
}
TOLERANCE = {torch.float32: 2e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise an error for every synchronisation with the host."""
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def case(device: torch.device, shape: str, rows: int, dtype: torch.dtype) -> tuple[Callable[[], Tensor], Tensor]:
    """Return a call of `experts` on random tensors, and what the reference gives for them in float32."""
    count, chosen, hidden, between, activation = SHAPES[shape]

    def some(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device)

    x, norm, residual = (some(*sizes).to(dtype) for sizes in ((rows, hidden), (hidden,), (rows, hidden)))
    found = route(some(rows, count), None, Router(count, chosen))
    stacks = some(count * 2 * between, hidden) / hidden**0.5, some(count * hidden, between) / between**0.5
    gate_up, down = (stack.to(dtype) for stack in stacks)
    biases = [some(count * 2 * between).to(dtype), some(count * hidden).to(dtype)]
    stack = ExpertStack(gate_up, down, count, activation, *(biases if shape == "gpt-oss" else []))
    call = x, found.experts, found.weights, stack, residual, RMSNorm(norm, EPS)
    wide = mapped(call, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    return lambda: experts(*call), reference(*wide)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 7, 64, 700, 2048])
@pytest.mark.parametrize("shape", SHAPES)
def test_experts_equal_the_reference(device: torch.device, shape: str, rows: int, dtype: torch.dtype) -> None:
    run, want = case(device, shape, rows, dtype)
    run()
    with no_waiting():
        found = run()
    torch.testing.assert_close(found.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_captured_graph_of_experts_follows_the_routing_of_each_replay(device: torch.device) -> None:
    count, chosen, hidden, between, _ = SHAPES["qwen3-moe"]
    gate_up = (torch.randn(count * 2 * between, hidden, device=device) / hidden**0.5).bfloat16()
    down = (torch.randn(count * hidden, between, device=device) / between**0.5).bfloat16()
    x = torch.randn(9, hidden, device=device).bfloat16()
    logits = torch.randn(9, count, device=device)

    def step() -> Tensor:
        found = route(logits, None, Router(count, chosen))
        return experts(x, *found[:2], ExpertStack(gate_up, down, count), torch.zeros_like(x))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(3):
        logits.copy_(torch.randn(9, count, device=device))
        x.copy_(torch.randn(9, hidden, device=device))
        graph.replay()
        assert torch.equal(out, step())


def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(device: torch.device) -> None:
    count, chosen, hidden, between, _ = SHAPES["qwen3-moe"]
    gate_up = (torch.randn(count * 2 * between, hidden, device=device) / hidden**0.5).bfloat16()
    down = (torch.randn(count * hidden, between, device=device) / between**0.5).bfloat16()
    x, logits = torch.randn(64, hidden, device=device).bfloat16(), torch.randn(64, count, device=device)
    results = []
    for _ in range(2):
        found = route(logits, None, Router(count, chosen))
        results.append(experts(x, *found[:2], ExpertStack(gate_up, down, count), torch.zeros_like(x))[5])
        x[:5], x[6:] = torch.randn_like(x[:5]), torch.randn_like(x[6:])
        logits[:5], logits[6:] = torch.randn_like(logits[:5]), torch.randn_like(logits[6:])
    assert torch.equal(*results)


@pytest.mark.parametrize("is_sigmoid", [False, True])
@pytest.mark.parametrize("groups", [1, 8])
def test_routers_select_the_experts_of_the_cpu(device: torch.device, is_sigmoid: bool, groups: int) -> None:
    logits, correction = torch.randn(300, 260), torch.randn(256) / 4
    router = Router(256, 8, is_sigmoid, True, 2.5, groups, max(1, groups // 2), 2 if groups > 1 else 1)
    want = route(logits, correction, router, gates=4)
    there = logits.to(device), correction.to(device)
    route(*there, router, gates=4)
    with no_waiting():
        found = route(*there, router, gates=4)
    same = (found.experts.cpu() == want.experts).all(-1)
    assert same.float().mean() > 0.98  # another exponential function may swap two scores that are nearly equal
    torch.testing.assert_close(found.weights.cpu()[same], want.weights[same])
    torch.testing.assert_close(found.gates.cpu(), want.gates)
