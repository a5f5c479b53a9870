from pathlib import Path
from statistics import median

import pytest
import torch

from ringkv.bench import compare as module
from ringkv.bench.compare import Comparison, compare
from ringkv.bench.pair import Workload, plan_pair
from ringkv.bench.probe import Ceiling
from ringkv.models.config import load_config
from ringkv.plan.options import Options
from tests.engine import tiny

WORK = Workload(prompt_tokens=100, output_tokens=6, rounds=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    tiny.save(made, "Llama", tie_word_embeddings=True)
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> Comparison:
    options = Options(slots=2, kv_budget=64, dtype="float32", graphs="off", threads=1, chunk=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Machine", KnownMachine)
        return compare(plan_pair(folder, load_config(folder), options, WORK, 10**11), WORK, limit=True)


class KnownMachine:
    """A machine that reads a gigabyte and does ten billion operations per second."""

    ceiling = Ceiling({1: {"read": 1e9}}, {"product": 1e10})

    def __init__(self, device: torch.device) -> None:
        pass

    def run(self) -> None:
        pass


LAYER = 96 * (2 * 6 * 32 + 2 * 2 * 32) + 3 * 96 * 160
MATRICES = 3 * LAYER + 199 * 96
ENTRY = 2 * 3 * 2 * 32 * 4  # keys and values, layers, heads, width, bytes


def test_a_step_reads_the_weights_and_the_live_entries(found: Comparison) -> None:
    assert found.full.step_bytes == 4 * MATRICES + 2 * ENTRY * median(range(101, 106))
    assert found.compressed.step_bytes == 4 * MATRICES + 2 * ENTRY * 64


def test_a_steps_floor_is_its_bytes_at_the_bandwidth(found: Comparison) -> None:
    for one in (found.full, found.compressed):
        assert one.floors is not None
        assert one.floors.step_s == pytest.approx(one.step_bytes / 1e9)
        assert one.floors.step_share == pytest.approx(one.floors.step_s / one.step_s)
        assert one.decode_tokens_per_s == pytest.approx(2 / one.step_s)


def test_a_prompts_floor_is_its_operations_at_the_matrix_rate(found: Comparison) -> None:
    operations = 2 * (100 * 3 * LAYER + 199 * 96) + 4 * 3 * 6 * 32 * sum(range(1, 101))
    for one in (found.full, found.compressed):
        assert one.floors is not None
        assert one.floors.prefill_s == pytest.approx(operations / 1e10)
        assert one.floors.prefill_share == pytest.approx(operations / 1e10 * one.prefill_tokens_per_s / 100)
        assert one.floors.first_token_share < one.floors.prefill_share


def test_the_machine_is_probed_only_if_requested(folder: Path) -> None:
    options = Options(slots=1, kv_budget=64, dtype="float32", graphs="off", threads=1, chunk=32)
    work = Workload(prompt_tokens=8, output_tokens=2, rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Machine", None)
        found = compare(plan_pair(folder, load_config(folder), options, work, 10**11), work)
    assert (found.ceiling, found.full.floors, found.compressed.floors) == (None, None, None)


def test_a_slot_has_exactly_the_entries_of_its_capacity(found: Comparison) -> None:
    assert (found.full.entries, found.compressed.entries) == (128 + 6, 64)
    assert found.compressed.slot_bytes == 64 * ENTRY
    assert found.full.held_bytes - found.compressed.held_bytes == 2 * (134 - 64) * ENTRY
