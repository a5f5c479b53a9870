"""Conversations that continue from slots that heads divide: on the device their logits are the CPU's in float32."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringkv.base.selectors import KVzip, Selector, SnapKV
from tests.engine import tiny
from tests.engine.test_turns_of_heads import KV, TURNS, Talk, served, started

pytestmark = pytest.mark.device


@pytest.mark.parametrize("select", [SnapKV(window=8), KVzip()])
def test_three_turns_have_the_cpus_logits(tmp_path: Path, select: Selector) -> None:
    tiny.save(tmp_path, "Llama")
    kv, answers = replace(KV, heads="global", select=select), []
    for device, graphs in (("cpu", "off"), ("cuda:0", "off"), ("cuda:0", "compiled")):
        talk = Talk(started(tmp_path, kv, device=device, graphs=graphs), kv)
        found = list(served(talk, TURNS))
        assert [turn.known for turn in found] == [0, 113, 143]
        answers.append((talk.held, torch.cat([turn.logits.cpu() for turn in found])))
    for held, logits in answers[1:]:
        assert held == answers[0][0]
        torch.testing.assert_close(logits, answers[0][1], atol=1e-3, rtol=1e-3)


def test_turns_in_bfloat16_are_near_those_of_float32(tmp_path: Path) -> None:
    """With flash attention, one head after the other."""
    tiny.save(tmp_path, "Llama")
    kv, answers = replace(KV, heads="global", select=SnapKV(window=8)), []
    for dtype in ("float32", "bfloat16"):
        talk = Talk(started(tmp_path, kv, device="cuda:0", dtype=dtype), kv)
        answers.append(torch.cat([turn.logits.cpu() for turn in served(talk, TURNS)]))
    assert (answers[1] - answers[0]).abs().mean() < 0.05 * answers[0].std()
