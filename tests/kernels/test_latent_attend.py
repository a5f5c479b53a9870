"""Attention of prefill over latents against the reference for keys and values."""

import pytest
import torch

from ringkv.kernels import prefill_attend
from ringkv.kernels.latent_attend import StagedLatents, prefill_attend_latent
from ringkv.kernels.prefill_attend import Segment, Staged, table
from tests.kernels.products import random_bf16

pytestmark = pytest.mark.usefixtures("compiled")
WIDTH, GROUPS, SCALE = 576, 20, 0.05


def test_a_pass_stages_latents_and_attends_causally() -> None:
    rows = 70
    q, k, latents = random_bf16(rows, 1, GROUPS, WIDTH), random_bf16(rows, 1, WIDTH), random_bf16(1, 200, WIDTH)
    window = torch.zeros(1, 1, GROUPS, 8, WIDTH, dtype=torch.bfloat16)
    copy, kept = latents.clone(), window.clone()
    segments = table([Segment(0, rows, 0, 32, 64, 134)])
    found = prefill_attend_latent(q, k, StagedLatents(latents, window, segments), SCALE)
    want = prefill_attend.reference(q, k, k, Staged(copy, copy, kept, segments), SCALE)
    assert torch.equal(latents, copy)
    assert torch.equal(window, kept)
    torch.testing.assert_close(found.out.float(), want.out.float(), atol=0.02, rtol=0.02)
