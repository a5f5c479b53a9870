"""Decode attention over encoded entries against float64 attention over the decoded ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ringkv.kernels import decode_attend_fp8 as fp8
from ringkv.kernels import decode_attend_int4 as int4
from ringkv.kernels import decode_attend_int8 as int8
from ringkv.kernels import decode_attend_turbo4 as turbo4
from ringkv.kernels.decode_attend import WIDTH_STEP
from ringkv.kernels.encoded_attend import NO_KEY, Encoding
from ringkv.kernels.library import is_native
from ringkv.kernels.random_signs import random_signs

pytestmark = pytest.mark.usefixtures("compiled")
DTYPES = {torch.float32: 0.0, torch.bfloat16: 1e-2, torch.float16: 2e-3}
SHAPES = [
    (2, 6, 128, [1, 300, 0, 513]),
    (1, 1, 32, [7, 256, 257]),
    (3, 3, 64, [31, 2]),
    (2, 8, 96, [400, 16]),
    (1, 2, 256, [600]),
    (2, 5, 40, [33, 1]),
]
Tensors = list[torch.Tensor]


class Case(NamedTuple):
    """tolerance: of outputs in float32. Softmax weights in 16 bits cost more than float32 does.

    queries: what the kernel multiplies with the keys.
    """

    tolerance: float
    keys: Encoding
    values: Encoding
    attend: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    reference: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    queries: Callable[[torch.Tensor], torch.Tensor]


class Called(TorchDispatchMode):
    """Records the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def in_bytes(q: torch.Tensor) -> torch.Tensor:
    """Return queries that are rotated and rounded to bytes."""
    return int8.decode(*int8.encode(q))


def flipped_in_bytes(q: torch.Tensor) -> torch.Tensor:
    signs = random_signs(q.shape[-1])
    return in_bytes(q * signs) * signs


CASES = {
    "fp8": Case(1e-5, fp8.FP8, fp8.FP8, fp8.decode_attend_fp8, fp8.reference, lambda q: q),
    "int4": Case(2e-3, int4.INT4, int4.INT4, int4.decode_attend_int4, int4.reference, in_bytes),
    "turbo4": Case(2e-3, turbo4.TURBO4, int4.INT4, turbo4.decode_attend_turbo4, turbo4.reference, flipped_in_bytes),
}

EXACT = CASES | {"int8": Case(2e-3, int8.INT8, int8.INT8, int8.decode_attend_int8, int8.reference, in_bytes)}


def made(case: Case, slots: int, heads: int, entries: int, width: int) -> Tensors:
    """Return a cache: keys and scales, values and scales (entries of many magnitudes), centers of the keys."""
    torch.manual_seed(0)
    planes: Tensors = []
    for encoding in (case.keys, case.values):
        sizes = torch.rand(slots, heads, entries, 1) * 3 + 0.1
        planes += encoding.encode(torch.randn(slots, heads, entries, width) * sizes)
    return [*planes, torch.randn(slots, heads, width)]


def decoded(case: Case, planes: Tensors, slot: int) -> Tensors:
    """Return keys and values of a slot, float64 [H, C, D]."""
    both = (case.keys, planes[0], planes[1]), (case.values, planes[2], planes[3])
    return [encoding.decode(plane[slot], scales[slot]).double() for encoding, plane, scales in both]


def by_hand(
    case: Case, q: torch.Tensor, rounded: torch.Tensor, planes: Tensors, slot: int, live: int, scale: float
) -> Tensors:
    """Return out [H, G, D] and lse [H, G] of one row; `rounded` are the queries that are multiplied with the keys."""
    keys, values = (plane[:, :live] for plane in decoded(case, planes, slot))
    common = torch.einsum("hgd,hd->hg", q.double(), planes[4][slot].double())
    scores = scale * (torch.einsum("hgd,hnd->hgn", rounded.double(), keys) + common[..., None])
    return [torch.einsum("hgn,hnd->hgd", scores.softmax(-1), values), scores.logsumexp(-1)]


@pytest.mark.parametrize("way", ["attend", "reference"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "groups", "width", "lives"), SHAPES)
def test_it_equals_attention_over_the_decoded_entries(
    way: str, name: str, dtype: torch.dtype, heads: int, groups: int, width: int, lives: list[int]
) -> None:
    case, rows = CASES[name], len(lives)
    tolerance = max(case.tolerance, DTYPES[dtype])
    planes = made(case, rows + 1, heads, max(lives) + 5, width)
    q = torch.randn(rows, heads, groups, width).to(dtype)
    k, v = (torch.randn(rows, heads, width).to(dtype) for _ in range(2))
    slot = torch.arange(1, rows + 1, dtype=torch.int32).flip(0)
    entry = torch.tensor([max(0, live // 2) for live in lives], dtype=torch.int32)
    before = [plane.clone() for plane in planes]
    live = torch.tensor(lives, dtype=torch.int32)
    out, lse = getattr(case, way)(q, k, v, *planes, slot, entry, live, width**-0.5)
    fresh = *case.keys.encode(k - planes[4][slot.long()]), *case.values.encode(v)
    for new, plane in zip(fresh, planes[:4], strict=True):
        for row, count in enumerate(lives):
            if count:
                assert torch.equal(plane[slot[row], :, entry[row]], new[row])
    for row, count in enumerate(lives):
        if count == 0:
            assert not out[row].any()
            assert (lse[row] == -torch.inf).all()
            assert all(torch.equal(plane[slot[row]], old[slot[row]]) for plane, old in zip(planes, before, strict=True))
            continue
        is_compiled = way == "attend" and width % WIDTH_STEP == 0
        rounded = case.queries(q[row]) if is_compiled else q[row]
        expected, log_sum = by_hand(case, q[row], rounded, planes, int(slot[row]), count, width**-0.5)
        torch.testing.assert_close(out[row].double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[row].double(), log_sum, rtol=1e-4, atol=1e-4)
    assert torch.equal(planes[0][0], before[0][0])  # a slot that no row names


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [64, 96, 128])
def test_the_kernel_writes_the_bytes_that_the_reference_writes(name: str, width: int) -> None:
    case, rows = CASES[name], 400
    planes = made(case, rows, 2, 3, width)
    sizes = torch.logspace(-6, 6, rows)[:, None, None]
    k, v = (torch.randn(rows, 2, width) * sizes for _ in range(2))
    k[0], v[1] = 0, 0
    slot = torch.arange(rows, dtype=torch.int32)
    entry, live = torch.full_like(slot, 1), torch.full_like(slot, 3)
    q = torch.randn(rows, 2, 1, width)
    twin = [plane.clone() for plane in planes]
    case.attend(q, k, v, *planes, slot, entry, live, 0.1)
    case.reference(q, k, v, *twin, slot, entry, live, 0.1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(planes, twin, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_same_bits_beside_any_neighbours(name: str) -> None:
    case = CASES[name]
    planes = made(case, 3, 2, 700, 64)
    q, k, v = torch.randn(3, 2, 6, 64), torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    slot, entry = torch.arange(3, dtype=torch.int32), torch.tensor([5, 6, 7], dtype=torch.int32)
    live = torch.tensor([700, 10, 300], dtype=torch.int32)
    together, _ = case.attend(q, k, v, *[plane.clone() for plane in planes], slot, entry, live, 0.1)
    for row in range(3):
        one = slice(row, row + 1)
        alone, _ = case.attend(q[one], k[one], v[one], *planes, slot[one], entry[one], live[one], 0.1)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("way", ["attend", "reference"])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("live", [2, 300])
def test_exact_keys_of_first_entries_replace_the_stored_ones(way: str, name: str, live: int) -> None:
    case, kept = EXACT[name], [0, 3]
    planes = made(case, 1, 2, 300, 64)
    first = torch.full((1, 2, 4, 64), NO_KEY)
    first[:, :, kept] = 3 * torch.randn(1, 2, len(kept), 64)
    q, k, v = torch.randn(1, 2, 6, 64), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    slot, entry = torch.zeros(1, dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    centers = torch.cat((planes[4], first.flatten(2)), -1)
    out, lse = getattr(case, way)(q, k, v, *planes[:4], centers, slot, entry, slot + live, 0.1)
    keys, values = (plane[:, :live] for plane in decoded(case, planes, 0))
    rounded, known = case.queries(q[0]) if way == "attend" else q[0], [at for at in kept if at < live]
    scores = torch.einsum("hgd,hnd->hgn", rounded.double(), keys)
    scores[..., known] = torch.einsum("hgd,hnd->hgn", q[0].double(), first[0, :, known].double())
    scores = 0.1 * (scores + torch.einsum("hgd,hd->hg", q[0].double(), planes[4][0].double())[..., None])
    expected = torch.einsum("hgn,hnd->hgd", scores.softmax(-1), values)
    torch.testing.assert_close(out[0].double(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[0].double(), scores.logsumexp(-1), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("way", ["attend", "reference"])
@pytest.mark.parametrize("name", ["int8", *CASES])
def test_what_another_layer_has_written_is_read_with_the_bits_of_the_layer_that_wrote_it(way: str, name: str) -> None:
    case = EXACT[name]
    attend, planes = getattr(case, way), made(case, 3, 2, 300, 64)
    q, k, v = torch.randn(3, 2, 6, 64), torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    slot, live = torch.arange(3, dtype=torch.int32), torch.tensor([300, 0, 17], dtype=torch.int32)
    rows = slot, (live - 1).clamp(min=0), live, 0.1
    written = attend(q, k, v, *planes, *rows)
    copies = [plane.clone() for plane in planes]
    read = attend(q, None, None, *planes, *rows)
    assert all(torch.equal(one, other) for one, other in zip(read, written, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(planes, copies, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_a_head_dim_that_only_the_cpu_kernel_lacks_does_not_run_the_reference_on_another_device(name: str) -> None:
    planes, vectors = made(EXACT[name], 1, 1, 3, 80), [torch.randn(1, 1, *shape, 80) for shape in ((2,), (), ())]
    numbers = [torch.ones(1, dtype=torch.int32) for _ in range(2)]
    given = [*vectors, *planes, torch.zeros(1, dtype=torch.int32), *numbers]
    called = []
    for device in ("cpu", "meta"):
        with Called() as operators:
            EXACT[name].attend(*[one.to(device) for one in given], 0.1)
        called += [one for one in operators.names if "decode_attend" in one]
    assert called == [f"ringkv.decode_attend_{name}_any.default", f"ringkv.decode_attend_{name}.default"]


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_compiled(name: str) -> None:
    assert is_native(f"decode_attend_{name}")
