from pathlib import Path
from statistics import median

import pytest

from ringkv.bench import compare as module
from ringkv.bench.compare import Comparison, compare
from ringkv.bench.pair import Workload, pair
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
        patch.setattr(module, "Probe", lambda device: SmallProbe())
        return compare(pair(folder, load_config(folder), options, WORK, 10**11), WORK)


class SmallProbe:
    """A memory that reads a gigabyte a second."""

    best = 1e9

    def run(self) -> None:
        pass


def test_a_step_reads_the_weights_and_what_the_slots_hold(found: Comparison, folder: Path) -> None:
    weights = (folder / "model.safetensors").stat().st_size
    entry = 2 * 3 * 2 * 32 * 4  # keys and values, layers, heads, width, bytes
    full = weights + 2 * entry * median(range(101, 106))
    small = weights + 2 * entry * 64
    header = 5000  # of the file, that is not weights
    assert full - header < found.full.step_bytes <= full
    assert small - header < found.compressed.step_bytes <= small
    assert found.full.step_bytes - found.compressed.step_bytes == full - small


def test_the_floor_is_those_bytes_at_the_bandwidth(found: Comparison) -> None:
    for one in (found.full, found.compressed):
        assert one.floor_s == pytest.approx(one.step_bytes / 1e9)
        assert one.floor_share == pytest.approx(one.floor_s / one.step_s)
        assert one.decode_tokens_per_s == pytest.approx(2 / one.step_s)


def test_a_slot_holds_its_entries_and_no_more(found: Comparison) -> None:
    entry = 2 * 3 * 2 * 32 * 4
    assert (found.full.entries, found.compressed.entries) == (128 + 6, 64)
    assert found.compressed.slot_bytes == 64 * entry
    assert found.full.held_bytes - found.compressed.held_bytes == 2 * (134 - 64) * entry
