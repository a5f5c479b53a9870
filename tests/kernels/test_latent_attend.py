"""Attention over latents against the reference for keys and values."""

import pytest
import torch
from torch import Tensor

from ringkv.kernels import decode_attend, prefill_attend
from ringkv.kernels.latent_attend import decode_attend_latent, prefill_attend_latent
from ringkv.kernels.prefill_attend import Segment, table
from tests.kernels.products import random_bf16

pytestmark = pytest.mark.usefixtures("compiled")
WIDTH, GROUPS, SLOTS, ENTRIES, SCALE = 576, 20, 6, 400, 0.05


def step(rows: int) -> tuple[Tensor, ...]:
    """Queries, new latents, slots, entries and live lengths of a step; row 1 is free."""
    live = torch.randint(1, ENTRIES, (rows,), dtype=torch.int32)
    live[1:2] = 0
    slot = torch.randperm(SLOTS)[:rows].int()
    return random_bf16(rows, 1, GROUPS, WIDTH), random_bf16(rows, 1, WIDTH), slot, (live - 1).clamp(min=0), live


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_step_writes_the_latent_and_attends_to_what_is_live(rows: int) -> None:
    latents = random_bf16(SLOTS, 1, ENTRIES, WIDTH)
    copy, (q, k, slot, entry, live) = latents.clone(), step(rows)
    found = decode_attend_latent(q, k, latents, slot, entry, live, SCALE)
    want, lse = decode_attend.reference(q, k, k, copy, copy, slot, entry, live, SCALE)
    assert torch.equal(latents, copy)
    torch.testing.assert_close(found.out.float(), want.float(), atol=0.02, rtol=0.02)
    torch.testing.assert_close(found.lse, lse, atol=1e-3, rtol=1e-3)


def test_a_rows_bits_do_not_depend_on_the_rows_beside_it() -> None:
    latents, (q, k, slot, entry, live) = random_bf16(SLOTS, 1, ENTRIES, WIDTH), step(5)
    many = decode_attend_latent(q, k, latents, slot, entry, live, SCALE)
    for row in range(5):
        own = slice(row, row + 1)
        alone = decode_attend_latent(q[own], k[own], latents, slot[own], entry[own], live[own], SCALE)
        assert torch.equal(alone.out[0], many.out[row])


def test_a_pass_stages_latents_and_attends_causally() -> None:
    rows = 70
    q, k, latents = random_bf16(rows, 1, GROUPS, WIDTH), random_bf16(rows, 1, WIDTH), random_bf16(1, 200, WIDTH)
    window = torch.zeros(1, 1, GROUPS, 8, WIDTH, dtype=torch.bfloat16)
    copy, kept = latents.clone(), window.clone()
    segments = table([Segment(0, rows, 0, 32, 64, 134)])
    found = prefill_attend_latent(q, k, latents, window, segments, SCALE)
    want = prefill_attend.reference(q, k, k, copy, copy, kept, segments, SCALE)
    assert torch.equal(latents, copy)
    assert torch.equal(window, kept)
    torch.testing.assert_close(found.out.float(), want.out.float(), atol=0.02, rtol=0.02)
