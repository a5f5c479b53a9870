from dataclasses import replace
from pathlib import Path

import pytest

from ringkv.base.errors import DoesNotFit, InvalidRequest
from ringkv.bench.pair import Workload, plan_pair
from ringkv.bench.probe import PROBE_BYTES
from ringkv.plan.engine_footprint import GPU_RESERVE, RESERVE, engine_footprint
from ringkv.plan.options import Options
from tests.plan.models import SMOLLM2

GB = 10**9
WORK = Workload(prompt_tokens=2048, output_tokens=64)


def made(memory: int = 100 * GB, workload: Workload = WORK, **choices: object):  # type: ignore[no-untyped-def]
    return plan_pair(Path("m"), SMOLLM2, Options(**{"slots": 4, "kv_budget": 512, **choices}), workload, memory)  # type: ignore[arg-type]


def test_the_two_differ_only_in_the_cache() -> None:
    both = made()
    assert (both.full.kv.policy, both.full.capacity) == ("full", 2048 + 64)
    assert (both.compressed.kv.policy, both.compressed.capacity) == ("snapstream", 512)
    for name in ("slots", "prompt_tokens", "chunk", "dtype", "graphs", "threads", "device"):
        assert getattr(both.full, name) == getattr(both.compressed, name)


def test_two_engines_that_fit_one_by_one_but_not_together_are_refused() -> None:
    both = made()
    needs = [engine_footprint(SMOLLM2, config).total(4) for config in (both.full, both.compressed)]
    enough = sum(needs) + PROBE_BYTES
    assert made(memory=enough) == both
    with pytest.raises(DoesNotFit, match="fit together"):
        made(memory=enough - 1)


def test_two_engines_on_a_gpu_share_its_memory_and_not_the_hosts() -> None:
    def on_gpu(device: int) -> int:
        options = Options(slots=4, kv_budget=512, device="cuda")
        return plan_pair(Path("m"), SMOLLM2, options, WORK, RESERVE, device).compressed.capacity

    both = made()
    # On a GPU a pass takes one prompt, so that the staging has no room for others.
    alone = [replace(config, lanes=1, staged_tokens=0) for config in (both.full, both.compressed)]
    host = sum(engine_footprint(SMOLLM2, config).total(4) for config in alone)
    enough = host + 2 * (GPU_RESERVE - RESERVE) + PROBE_BYTES
    assert on_gpu(enough) == 512
    with pytest.raises(DoesNotFit, match="fit together"):
        on_gpu(enough - 1)


def test_a_workload_over_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="8,192"):
        made(workload=Workload(prompt_tokens=8192, output_tokens=2))


def test_full_is_not_compared_with_itself() -> None:
    with pytest.raises(InvalidRequest, match="choose another"):
        made(kv_policy="full")
