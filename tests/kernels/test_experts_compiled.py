"""The Triton kernels of `route` and `experts`, compiled for each GPU generation by Triton's own compiler.

They run on fake tensors, on which an operation that waits for the host, or whose shape depends on data, is an error.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)

from ringkv.base.router import Router
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.gpu.expert_products import down_tile, gated_tile, sum_experts
from ringkv.kernels.gpu.experts import expert_tiling, experts, most_tiles, tile_rows
from ringkv.kernels.gpu.route import route, top_k_experts
from ringkv.kernels.gpu.sort_by_expert import FEW, count_pairs, place_pairs, rank_pairs
from ringkv.kernels.gpu.tiling import chip
from tests.kernels.compiled import absent_device, stack_bytes

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.slow]  # compiles kernels for GPUs
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
GROUPED = {"deepseek-v3": Router(256, 8, is_sigmoid=True, scale=2.5, groups=8, kept_groups=4, best=2)}
ACTIVATION = {"gpt-oss": "clamped_swiglu"}
SHAPES = {  # experts, chosen, hidden, between
    "gpt-oss": (32, 4, 2880, 2880),
    "qwen3-moe": (128, 8, 2048, 768),
    "deepseek-v3": (256, 8, 7168, 2048),  # more than 2**31 weights
}


def run(shape: str, rows: int, dtype: torch.dtype) -> None:
    """Launch the kernels in `absent_device`, for gpt-oss with biases."""
    count, chosen, hidden, between = SHAPES[shape]

    def empty(*sizes: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=of, device="cuda")

    logits, correction = empty(rows, count + 32, of=FP32), empty(count, of=FP32)
    choice = route(logits, correction, GROUPED.get(shape, Router(count, chosen)), int(shape not in GROUPED))[:2]
    x, stacks = empty(rows, hidden), (empty(count * 2 * between, hidden), empty(count * hidden, between))
    biases = (empty(count * 2 * between), empty(count * hidden)) if shape == "gpt-oss" else (None, None)
    out = experts(x, *choice, ExpertStack(*stacks, count, ACTIVATION.get(shape, "silu"), *biases), x)
    assert (out.shape, out.dtype) == (x.shape, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "shape", "rows", "dtype"),
    [
        *[(80, "gpt-oss", 2048, BF16), (90, "gpt-oss", 2048, BF16), (100, "gpt-oss", 2048, FP16)],
        *[(90, "qwen3-moe", rows, BF16) for rows in (1, 64, 2048)],
        *[(90, "deepseek-v3", 1024, BF16), (80, "qwen3-moe", 4, FP32)],
    ],
)
def test_it_compiles_within_the_shared_memory_of_its_tiling_and_spills_nothing(
    capability: int, shape: str, rows: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    count, chosen, hidden, between = SHAPES[shape]
    with absent_device(capability) as absent:
        run(shape, rows, dtype)
        tall = tile_rows(rows * chosen, count, dtype.itemsize)
        tiles = most_tiles(rows * chosen, count, tall)
        launches = dict(absent.launches)
        for kernel, width, matrices in ((gated_tile, between, 2), (down_tile, hidden, 1)):
            (made,) = absent.made(kernel)
            cut = expert_tiling(tall, tiles, width, matrices, dtype.itemsize, chip(torch.device("cuda")))
            columns = -(-width // cut.columns)
            assert launches.pop(made.metadata.name) == ((tiles, columns, 1) if matrices == 2 else (columns, tiles, 1))
            assert made.metadata.shared <= cut.shared_bytes(matrices, dtype.itemsize)
            assert stack_bytes(made, tmp_path) <= (8 if capability == 100 else 0)
            assert "cp.async.cg.shared.global" in made.asm["ptx"]  # loads of 16 bytes each
            assert dtype == FP32 or any(name in made.asm["ptx"] for name in ("mma.sync", "wgmma", "tcgen05.mma"))
        sort = {"rank_pairs"} if rows * chosen <= FEW else {"count_pairs", "place_pairs"}
        assert {*launches} == {"top_k_experts", "sum_experts"} | sort
        for kernel in (top_k_experts, rank_pairs, count_pairs, place_pairs, sum_experts):
            assert not any(stack_bytes(made, tmp_path) for made in absent.made(kernel))


def test_one_compilation_serves_all_numbers_of_rows_with_the_same_tiles() -> None:
    with absent_device(90) as absent:
        for rows in (40, 41, 64, 100):
            run("qwen3-moe", rows, BF16)
        assert [len(absent.made(kernel)) for kernel in (top_k_experts, rank_pairs, gated_tile, down_tile)] == [1] * 4
