"""Chunked prefill attention against one causal softmax over the whole prompt."""

import itertools

import pytest
import torch

from ringkv.kernels import prefill_attend
from ringkv.kernels.attended import Attended
from ringkv.kernels.prefill_attend import Staged

HEADS, GROUPS, WIDTH, STAGED, WINDOW = 2, 3, 32, 64, 8
SCALE = 0.21  # not 1 / sqrt of a head_dim


def one(start: int, length: int, rows: int) -> torch.Tensor:
    """The segment of one prompt's chunk, whose rows beyond its length are padding."""
    return prefill_attend.table([prefill_attend.Segment(0, rows, 0, 0, start, length)])


def in_blocks(*inputs, sliding: int = 0):  # type: ignore[no-untyped-def]
    return prefill_attend.reference(*inputs, sliding, block=5)


KERNELS = [prefill_attend.reference, in_blocks, prefill_attend.prefill_attend]


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sliding: int = 0) -> Attended:
    """Causal attention of q [n, H, G, D] to the last `sliding` of k, v [n, H, D], in float64, without chunks."""
    scores = torch.einsum("nhgd,mhd->hgnm", q.double(), k.double()) * SCALE
    causal = torch.ones(len(q), len(q)).tril().triu(1 - sliding if sliding else -len(q)).bool()
    scores = scores.masked_fill(~causal, -torch.inf)
    out = torch.einsum("hgnm,mhd->nhgd", scores.softmax(-1), v.double())
    return Attended(out, scores.logsumexp(-1).permute(2, 0, 1))


def close(found: list[Attended], want: Attended, length: int, **tolerance: float) -> None:
    """Compare chunks with the whole prompt, without the padding at the end."""
    for parts, whole in zip(zip(*found, strict=True), want, strict=True):
        torch.testing.assert_close(torch.cat(parts)[:length].double(), whole, **tolerance)
    assert all(one.lse.dtype == torch.float32 for one in found)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("chunk", [8, 16, 64])
def test_chunks_attend_as_the_whole_prompt_would(kernel, chunk: int) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(chunk)
    length = 43
    q, k, v = torch.randn(64, HEADS, GROUPS, WIDTH), torch.randn(64, HEADS, WIDTH), torch.randn(64, HEADS, WIDTH)
    keys, values = torch.zeros(HEADS, STAGED, WIDTH), torch.zeros(HEADS, STAGED, WIDTH)
    window = torch.zeros(1, HEADS, GROUPS, WINDOW, WIDTH)
    outs = []
    for start in range(0, length, chunk):
        here = slice(start, start + chunk)
        span = one(start, length, len(q[here]))
        outs.append(kernel(q[here], k[here], v[here], Staged(keys, values, window, span), SCALE))
    close(outs, whole(q[:length], k[:length], v[:length]), length, atol=1e-5, rtol=1e-4)
    assert torch.equal(keys[:, :length], k[:length].transpose(0, 1))
    assert torch.equal(window[0], q[length - WINDOW : length].permute(1, 2, 0, 3))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("chunk", [8, 16, 64])
@pytest.mark.parametrize("sliding", [1, 7, 16, 20, 64])
def test_a_token_sees_only_its_sliding_window(kernel, chunk: int, sliding: int) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(chunk)
    length = 43
    q, k, v = torch.randn(64, HEADS, GROUPS, WIDTH), torch.randn(64, HEADS, WIDTH), torch.randn(64, HEADS, WIDTH)
    planes = [torch.full((HEADS, STAGED, WIDTH), torch.nan) for _ in range(2)]
    window = torch.zeros(1, HEADS, GROUPS, WINDOW, WIDTH)
    outs = []
    for start in range(0, length, chunk):
        here = slice(start, start + chunk)
        span = one(start, length, len(q[here]))
        outs.append(kernel(q[here], k[here], v[here], Staged(*planes, window, span), SCALE, sliding=sliding))
    close(outs, whole(q[:length], k[:length], v[:length], sliding), length, atol=1e-5, rtol=1e-4)
    assert torch.equal(planes[1][:, :length], v[:length].transpose(0, 1))
    assert torch.equal(window[0], q[length - WINDOW : length].permute(1, 2, 0, 3))


def of_heads(segment: prefill_attend.Segment, begins: list[int]) -> torch.Tensor:
    """The table of a segment whose heads begin at these places."""
    return prefill_attend.tables([segment], torch.tensor([[begins]]))[0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("begins", [[0, 17], [5, 0], [0, 0], [20, 20]])
def test_each_head_sees_its_lane_from_its_own_first_place(kernel, begins: list[int]) -> None:  # type: ignore[no-untyped-def]
    """What is before is not read."""
    torch.manual_seed(0)
    known, length = 20, 43
    q, k, v = torch.randn(64, HEADS, GROUPS, WIDTH), torch.randn(64, HEADS, WIDTH), torch.randn(64, HEADS, WIDTH)
    keys, values = (x[:known].transpose(0, 1).clone() for x in (k, v))
    planes = [torch.nn.functional.pad(plane, (0, 0, 0, STAGED - known)) for plane in (keys, values)]
    for head, first in enumerate(begins):
        for plane in planes:
            plane[head, :first] = torch.nan
    window = torch.zeros(1, HEADS, GROUPS, WINDOW, WIDTH)
    outs = []
    for start, stop in ((known, 32), (32, length)):
        here = slice(start, stop)
        table = of_heads(prefill_attend.Segment(0, stop - start, 0, 0, start, length), begins)
        outs.append(kernel(q[here], k[here], v[here], Staged(*planes, window, table), SCALE))
    for head, first in enumerate(begins):
        own = (x[first:length, head : head + 1] for x in (q, k, v))
        want = Attended(*(part[known - first :] for part in whole(*own)))
        mine = [Attended(*(part[:, head : head + 1] for part in out)) for out in outs]
        close(mine, want, length - known, atol=1e-5, rtol=1e-4)
    assert torch.equal(planes[0][:, known:length], k[known:length].transpose(0, 1))


def test_a_prompt_shorter_than_the_window_keeps_its_queries_at_the_right() -> None:
    q = torch.randn(8, HEADS, GROUPS, WIDTH)
    k = torch.randn(8, HEADS, WIDTH)
    planes = [torch.zeros(HEADS, STAGED, WIDTH) for _ in range(2)]
    window = torch.zeros(1, HEADS, GROUPS, WINDOW, WIDTH)
    prefill_attend.prefill_attend(q, k, k, Staged(*planes, window, one(0, 5, 8)), SCALE)
    assert torch.equal(window[0, :, :, -5:], q[:5].permute(1, 2, 0, 3))
    assert not window[0, :, :, :-5].any()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("groups", "width"), [(3, 64), (6, 128), (1, 32)])
@pytest.mark.parametrize("chunk", [64, 200, 512])
@pytest.mark.parametrize("loud", [1, 5, 20, 200])  # times: a key far above all before it, within a block
def test_bfloat16_chunks_attend_as_the_whole_prompt_would(groups: int, width: int, chunk: int, loud: int) -> None:
    torch.manual_seed(chunk)
    length, staged = 700, 900  # some blocks of keys are whole, some are cut by the prompt's end or the staging's
    q, k, v = (
        torch.randn(-(-length // chunk) * chunk, HEADS, *shape).bfloat16()
        for shape in ((groups, width), (width,), (width,))
    )
    k[350] *= loud
    planes = [torch.full((HEADS, max(staged, len(q)), width), torch.nan).bfloat16() for _ in range(2)]
    window = torch.zeros(1, HEADS, groups, 64, width).bfloat16()
    outs = []
    for start in range(0, length, chunk):
        here = slice(start, start + chunk)
        span = one(start, length, len(q[here]))
        outs.append(prefill_attend.prefill_attend(q[here], k[here], v[here], Staged(*planes, window, span), SCALE))
    close(outs, whole(q[:length], k[:length], v[:length]), length, atol=2e-2, rtol=2e-2)
    assert torch.equal(planes[0][:, :length], k[:length].transpose(0, 1))
    assert torch.equal(planes[1][:, :length], v[:length].transpose(0, 1))
    assert torch.equal(window[0], q[length - 64 : length].permute(1, 2, 0, 3))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("begins", [[0, 333], [129, 1], [448, 448]])
def test_bfloat16_heads_see_their_lanes_from_their_own_first_places(groups: int, begins: list[int]) -> None:
    """Also beside a piece whose heads begin together, and with the same bits however the prompt is cut."""
    torch.manual_seed(groups)
    known, length, width, staged = 448, 700, 64, 900
    q, k, v = (torch.randn(length, HEADS, *shape).bfloat16() for shape in ((groups, width), (width,), (width,)))
    found = []
    unit = prefill_attend.unit_of(width, torch.bfloat16, torch.device("cpu"), 0)
    for cuts in ([known, length], [known, known + unit, known + 3 * unit, length]):
        planes = [torch.full((HEADS, 2 * staged, width), torch.nan).bfloat16() for _ in range(2)]
        for plane, one in zip(planes, (k, v), strict=True):
            plane[:, staged : staged + known] = one[:known].transpose(0, 1)
            for head, first in enumerate(begins):
                plane[head, staged : staged + first] = torch.nan
        window = torch.zeros(2, HEADS, groups, 64, width).bfloat16()
        outs = []
        for start, stop in itertools.pairwise(cuts):
            rows = stop - start
            each = [prefill_attend.Segment(0, rows, 1, staged, start, length)]
            each.append(prefill_attend.Segment(rows, 32, 0, 0, 0, 32))
            table = prefill_attend.tables(each, torch.tensor([[[0] * HEADS, begins]]))[0]
            both = [torch.cat((x[start:stop], x[:32])) for x in (q, k, v)]
            out = prefill_attend.prefill_attend(*both, Staged(*planes, window, table), SCALE)
            close([Attended(*(part[rows:] for part in out))], whole(q[:32], k[:32], v[:32]), 32, atol=2e-2, rtol=2e-2)
            outs.append(Attended(*(part[:rows] for part in out)))
        for head, first in enumerate(begins):
            own = (x[first:, head : head + 1] for x in (q, k, v))
            want = Attended(*(part[known - first :] for part in whole(*own)))
            mine = [Attended(*(part[:, head : head + 1] for part in out)) for out in outs]
            close(mine, want, length - known, atol=2e-2, rtol=2e-2)
        found.append(torch.cat([out.out for out in outs]))
        assert torch.equal(window[1], q[length - 64 :].permute(1, 2, 0, 3))
    assert torch.equal(*found)
