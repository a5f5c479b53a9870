"""Prefill attention over latents in both forms against one causal softmax over each head's keys and values."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels.absorb import absorb
from ringkv.kernels.attended import Attended
from ringkv.kernels.expanded_attend import BLOCK, Expansion, expanded_attend, reference
from ringkv.kernels.formats import FORMATS, unpack
from ringkv.kernels.latent_attend import StagedLatents
from ringkv.kernels.latent_pass import EXPANDED_ROWS, prefill_attend_expanded
from ringkv.kernels.library import is_native
from ringkv.kernels.prefill_attend import Segment, table

HEADS, RANK, NOPE, ROTATED, VALUE, SCALE = 3, 96, 64, 32, 32, 0.08
ENTRY = RANK + ROTATED


def matrices(weights: str | None = None) -> tuple[Tensor, Tensor]:
    """key_up and value_up of all heads, packed or plain float32."""
    up = torch.randn(HEADS, RANK, NOPE) / RANK**0.5, torch.randn(HEADS, VALUE, RANK) / RANK**0.5
    if weights is None:
        return up[0].flatten(0, 1), up[1].flatten(0, 1)
    pack = FORMATS[weights].pack
    return torch.cat([pack(one.bfloat16()) for one in up[0]]), torch.cat([pack(one.bfloat16()) for one in up[1]])


class Pass:
    """Random rows, matrices and staging of a pass with segments."""

    def __init__(self, segments: list[Segment], rows: int, weights: str | None = None, staged: int = 2000) -> None:
        torch.manual_seed(rows)
        dtype = torch.bfloat16 if weights else torch.float32
        key_up, value_up = matrices(weights)
        self.q = torch.randn(rows, 1, HEADS, NOPE + ROTATED).to(dtype)
        self.expansion = Expansion(key_up, value_up)
        self.segments, self.k = segments, torch.randn(rows, 1, ENTRY).to(dtype)
        self.latents = torch.randn(1, staged, ENTRY).to(dtype)
        self.window = torch.zeros(4, 1, HEADS, 8, ENTRY).to(dtype)

    @property
    def staged(self) -> StagedLatents:
        return StagedLatents(self.latents, self.window, table(self.segments))

    def run(self) -> Attended:
        return prefill_attend_expanded(self.q, self.k, self.staged, SCALE, self.expansion)

    def want(self, segment: Segment) -> Attended:
        """out [T, H, V] and lse [T, H] in float64, from keys and values of all that the segment sees."""
        plain = self.q[:, 0].double()
        key_up, value_up = (unpack(one).double() for one in self.expansion)
        seen = self.latents[0, segment.first : segment.entries.stop].double()
        keys = torch.einsum("sr,hrd->shd", seen[:, :RANK], key_up.unflatten(0, (HEADS, RANK)))
        values = torch.einsum("sr,hvr->shv", seen[:, :RANK], value_up.unflatten(0, (HEADS, VALUE)))
        scores = torch.einsum("nhd,shd->hns", plain[segment.here, :, :NOPE], keys)
        scores += torch.einsum("nhd,sd->hns", plain[segment.here, :, NOPE:], seen[:, RANK:])
        visible = torch.ones(scores.shape[1:]).tril(segment.start).bool()
        scores = (scores * SCALE).masked_fill(~visible, -torch.inf)
        return Attended(torch.einsum("hns,shv->nhv", scores.softmax(-1), values), scores.logsumexp(-1).T)


def one(rows: int, start: int, first: int = 0) -> Segment:
    """A prompt's last piece."""
    return Segment(0, rows, 0, first, start, start + rows)


LONG, SHORT = EXPANDED_ROWS + 70, 50


@pytest.mark.parametrize("start", [0, 31, 2 * BLOCK - 20])
@pytest.mark.parametrize("rows", [1, SHORT, EXPANDED_ROWS, LONG])
def test_both_forms_attend_as_one_softmax_over_keys_and_values(rows: int, start: int) -> None:
    made = Pass([one(rows, start, first=3)], rows)
    found, want = made.run(), made.want(made.segments[0])
    torch.testing.assert_close(found.out[:, 0].double(), want.out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.lse[:, 0].double(), want.lse, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(("rows", "start"), [(LONG, 0), (LONG, 1000), (1100, 90), (EXPANDED_ROWS, 256)])
def test_packed_matrices_expand_latents_as_well(weights: str, rows: int, start: int) -> None:
    """Queries, keys and weights of the softmax are rounded to 8 bits of mantissa, as in the absorbed form."""
    made = Pass([one(rows, start, first=3)], rows, weights)
    found, want = made.run(), made.want(made.segments[0])
    torch.testing.assert_close(found.out[:, 0].double(), want.out, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(found.lse[:, 0].double(), want.lse, atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("plain", ["key_up", "value_up"])
def test_one_of_the_two_matrices_may_be_too_narrow_to_be_packed(plain: str) -> None:
    made = Pass([one(LONG, 40)], LONG, "bf16")
    made.expansion = made.expansion._replace(**{plain: unpack(getattr(made.expansion, plain))})
    found, want = made.run(), made.want(made.segments[0])
    torch.testing.assert_close(found.out[:, 0].double(), want.out, atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("weights", [None, "bf16", "int4"])
def test_each_segment_of_a_pass_is_staged_and_attends_as_alone(weights: str | None) -> None:
    segments = [
        Segment(0, LONG, 2, 0, 100, 100 + LONG),
        Segment(LONG, SHORT, 0, 900, 32, 500),
        Segment(LONG + SHORT + 9, EXPANDED_ROWS, 1, 1200, 0, EXPANDED_ROWS - 5),  # with 5 rows of padding
    ]
    rows = segments[-1].here.stop + 4
    together, apart = Pass(segments, rows, weights), Pass(segments, rows, weights)
    found = together.run()
    for segment in segments:
        apart.segments = [segment]
        alone = apart.run()
        assert torch.equal(alone.out[segment.here], found.out[segment.here])
        assert torch.equal(alone.lse[segment.here], found.lse[segment.here])
    assert torch.equal(together.latents, apart.latents)
    assert torch.equal(together.window, apart.window)
    free = [*range(LONG + SHORT, LONG + SHORT + 9), *range(rows - 4, rows)]
    assert not found.out[free].any()
    assert (found.lse[free] == -torch.inf).all()


def test_the_window_keeps_the_absorbed_queries_of_a_prompts_last_tokens() -> None:
    length = 20 + LONG - 5
    made = Pass([Segment(0, LONG, 3, 0, 20, length)], LONG)
    made.run()
    absorbed = absorb(made.q, made.k, made.expansion)
    assert torch.equal(made.window[3], absorbed[length - 20 - 8 : length - 20].permute(1, 2, 0, 3))
    assert not made.window[:3].any()
    assert torch.equal(made.latents[0, 20 : 20 + LONG], made.k[:, 0])


@pytest.mark.usefixtures("compiled")
def test_a_tokens_bits_do_not_depend_on_where_expanded_chunks_were_cut() -> None:
    if not is_native("expanded_attend"):
        pytest.skip("needs the tiles operator")
    whole = Pass([one(600, 64)], 600, "int4")
    want, found = whole.run(), []
    for start, stop in ((0, 224), (224, 600)):
        part = Pass([one(600, 64)], 600, "int4")
        part.latents.copy_(whole.latents)
        here = slice(start, stop)
        part.segments = [Segment(0, stop - start, 0, 0, 64 + start, 664)]
        part.q, part.k = part.q[here], part.k[here]
        found.append(part.run().out)
    assert torch.equal(torch.cat(found), want.out)


@pytest.mark.usefixtures("compiled")
def test_threads_that_share_a_head_give_the_same_bits() -> None:
    made, threads = Pass([one(1100, 0)], 1100, "bf16"), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2 * HEADS):
            torch.set_num_threads(count)
            found.append(made.run().out)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.usefixtures("compiled")
def test_the_operator_is_its_reference() -> None:
    made = Pass([one(LONG, 700, first=7)], LONG, "int8")
    plain, segments = made.q[:, 0], table(made.segments)
    found = expanded_attend(plain, made.latents, segments, SCALE, made.expansion)
    want = reference(plain, made.latents, segments, *made.expansion, SCALE)
    torch.testing.assert_close(found[0].float(), want[0].float(), atol=1e-2, rtol=2e-2)
    torch.testing.assert_close(found[1], want[1], atol=5e-3, rtol=1e-3)
