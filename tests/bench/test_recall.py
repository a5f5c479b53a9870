"""The benchmark of recall: an engine for each policy, and its ratio to entries that were kept."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import recall
from bench.recall import Case, RecallFigure, _over, cases, measured, shown
from bench.report.recall import prefetch
from bench.report.recall import recall as report
from ringkv.engine.engine import LocalEngine
from tests.bench.report.made import measured as rows_of
from tests.engine import tiny

CASES = (
    *(Case("snapstream", 64), Case("arkvale", 256), Case("full", 256)),
    Case("arkvale", 256, unread="estimate"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_policy_has_its_entries_and_is_timed(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save(tmp_path, "Llama")
    monkeypatch.setattr(recall, "locate", lambda model: tmp_path)
    found = measured("any", case, 256, graphs="off")
    assert found.seconds > 0
    vectors, item = 3 * 2 * 2, 2  # layers, heads, keys and values; bytes of bfloat16
    entries = 64 if case.policy == "snapstream" else 512  # the context
    beside = 512 // 32 * (vectors * 32 * item + 3 * 2 * 4) + 3 * 20 if case.policy == "arkvale" else 0
    beside += 3 * 2 * 16 * 32 * 4 if case.unread == "estimate" else 0
    assert found.slots_bytes == 8 * (entries * vectors * 32 * item + beside)


def test_a_tier_is_a_case_of_its_own_and_ratios_are_of_the_same_round() -> None:
    found = [*cases(8000, "/disk")]
    assert [one.tier for one in found] == ["memory"] * 3 + ["/disk"] * 4 + ["memory"]
    assert [one.unread for one in found] == ["drop", "drop", "estimate", *["drop"] * 5]
    assert [(one.is_cold, one.prefetch) for one in found[3:7]] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert not any(one.is_cold or one.prefetch for one in (*found[:3], found[7]))
    rounds = [RecallFigure("arkvale", 8000, "memory", 10, seconds, 1) for seconds in (2.0, 9.0, 4.0)]
    one = _over([1.0, 3.0, 4.0], rounds)
    assert (one.seconds, one.over_kept) == (4.0, 2.0)
    assert "| arkvale | 8,000 | memory | drop | off | 10 | 4000.0 ms | 2.00x |" in shown([one])


def test_cold_steps_page_out_the_file_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save(tmp_path, "Llama")
    called: list[LocalEngine] = []
    monkeypatch.setattr(recall, "locate", lambda model: tmp_path)
    monkeypatch.setattr(recall, "page_out_slots", called.append)
    found = measured("any", Case("arkvale", 256, str(tmp_path), is_cold=True), 256, graphs="off")
    assert found.tier == "file, cold"
    assert [type(one) for one in called] == [LocalEngine] * recall.COLD_STEPS


def test_prefetching_has_rows_of_its_own_with_its_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save(tmp_path, "Llama")
    monkeypatch.setattr(recall, "locate", lambda model: tmp_path)
    found = measured("any", Case("arkvale", 256, str(tmp_path), prefetch=True), 256, graphs="off")
    assert (found.prefetch, found.hits) == (True, 0.0)  # all is in memory
    assert "| off |" in shown([replace(found, prefetch=False)])
    assert "| hits 75% |" in shown([replace(found, hits=0.75)])
    ahead = asdict(found) | {"model": "smollm2", "tier": "file, cold", "seconds": 0.6, "hits": 0.75}
    rows = rows_of("recall", ahead, {**ahead, "prefetch": False, "seconds": 0.5, "hits": 0.0})
    line = "256 in file, cold | 500.0 ms | 600.0 ms | 1.20x | 75% |"
    assert prefetch(rows).splitlines()[2].endswith(line)
    assert "600.0 ms" not in report(rows)


def test_the_table_has_the_bytes_in_memory_and_the_ratio_to_entries_that_were_kept() -> None:
    row = {"model": "smollm2", "policy": "arkvale", "live": 8000, "tier": "file", "slots_bytes": 47_200_000}
    line = report(rows_of("recall", {**row, "seconds": 0.0319, "over_kept": 1.38})).splitlines()[2]
    assert line.endswith("| arkvale | 8,000 in file | 47 | 31.9 ms | 1.38x |")


def test_a_run_with_other_pages_adds_its_rows_of_arkvale() -> None:
    row = {"model": "smollm2", "live": 8000, "tier": "memory", "slots_bytes": 1, "seconds": 0.03, "over_kept": 1.5}
    rows = [{**row, "policy": policy, "page": page} for page in (32, 16) for policy in ("snapstream", "arkvale")]
    rows.append({**rows[-1], "unread": "estimate"})
    lines = report(rows_of("recall", *rows)).splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines if line.startswith("| Smol")] == [
        "snapstream",
        "arkvale",
        "arkvale, pages of 16",
        "arkvale, pages of 16, estimating",
    ]
