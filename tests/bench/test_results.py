"""The table of results: appended figures are read back, and repeated runs become stale."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.metrics import METRICS
from bench.results import append, figures, keep, latest, machine, read, rows
from ringkv.machine import processor

ABOUT = {"machine": "m", "processor": "p", "versions": "v", "commit": "c"}


def measured(run: str, *cells: dict[str, Any], bench: str = "peers") -> list[dict[str, Any]]:
    return list(rows(bench, {"turns": 4}, cells, ABOUT | {"run": run}))


def test_every_metric_of_a_figure_is_a_row_with_its_unit() -> None:
    found = measured("1", {"engine": "vllm", "prompt": 512, "step_s": 0.25, "decode_tps": 4.0, "engines": ["a", "b"]})
    assert [(row["metric"], row["value"], row["unit"]) for row in found] == [
        ("step_s", 0.25, "s"),
        ("decode_tps", 4.0, "tokens/s"),
    ]
    assert all(row["engine"] == "vllm" and row["turns"] == 4 and "engines" not in row for row in found)


def test_figures_are_read_back_as_they_were_appended(tmp_path: Path) -> None:
    cells = [
        {"engine": "vllm", "prompt": 512, "step_s": 0.123456789, "agrees": 16},
        {"engine": "ringkv", "prompt": 512, "step_s": 2.0},
    ]
    append(tmp_path / "t.jsonl", measured("1", *cells))
    back = figures(read(tmp_path / "t.jsonl"), "peers")
    assert [{name: one[name] for name in cell} for one, cell in zip(back, cells, strict=True)] == [
        cells[0] | {"step_s": 0.123457},
        cells[1],
    ]
    assert [one["engine"] for one in figures(read(tmp_path / "t.jsonl"), "peers", engine="ringkv")] == ["ringkv"]
    assert figures(read(tmp_path / "t.jsonl"), "peers", machine="another") == []


def test_a_case_without_figures_has_its_reason() -> None:
    (row,) = measured("1", {"engine": "vllm", "why": "no wheel"})
    assert (row["metric"], row["value"], row["why"]) == (None, None, "no wheel")
    (figure,) = figures([row], "peers")
    assert "metric" not in figure


def test_a_figure_with_a_number_that_no_metric_names_is_refused() -> None:
    with pytest.raises(AssertionError, match="no metric"):
        measured("1", {"engine": "vllm", "step_secs": 0.5})


def test_a_run_is_stale_once_a_later_one_has_repeated_all_of_it() -> None:
    first = measured("1", {"engine": "a", "step_s": 1.0}, {"engine": "b", "step_s": 1.0})
    part = measured("2", {"engine": "a", "step_s": 2.0})
    more = measured("3", *({"engine": name, "step_s": 3.0} for name in "abc"))
    other = measured("3", *({"engine": name, "step_s": 3.0} for name in "abc"), bench="limits")
    assert latest([*first, *part]) == [*first, *part]
    assert latest([*first, *part, *more]) == more
    assert latest([*first, *other]) == [*first, *other]


def test_figures_of_a_benchmark_are_printed_and_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        keep("graphs", {"model": "m", "rounds": 6}, [{"way": "eager", "step_s": 0.5}], "| a table |", tmp_path / "t")
    assert "| a table |\n\nmodel m, rounds 6. " in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert [line["way"] for line in lines] == ["eager"] * 2
    assert lines[0]["machine"] == machine()


def test_rows_of_a_device_name_it(tmp_path: Path) -> None:
    keep("device", {}, [{"kind": "memory", "free": 1}], "", tmp_path / "t", "an H100")
    (row,) = read(tmp_path / "t")
    assert (row["machine"], row["processor"]) == ("cuda", "an H100")


def test_every_row_of_the_table_has_its_unit_and_its_provenance() -> None:
    table = read()
    assert len(table) > 2000
    for row in table:
        if row["metric"] in METRICS:  # the others are of finished studies
            assert (row["unit"], row["statistic"]) == METRICS[row["metric"]]
        assert isinstance(row["value"], (int, float))
        assert all(row[name] for name in ("bench", "machine", "run", "processor", "versions", "commit"))


@pytest.mark.parametrize(
    ("cpuinfo", "kind"),
    [
        ({"vendor_id": "GenuineIntel", "flags": "fpu avx512f avx512_bf16 amx_tile amx_bf16"}, "intel-amx_bf16"),
        ({"vendor_id": "GenuineIntel", "flags": "fpu avx512f avx512_bf16"}, "intel-avx512_bf16"),
        ({"vendor_id": "AuthenticAMD", "flags": "fpu avx512f avx512_bf16"}, "amd-avx512_bf16"),
        ({"vendor_id": "AuthenticAMD", "flags": "fpu avx2"}, "amd-plain"),
        ({}, "other-plain"),
    ],
)
def test_a_machine_is_named_by_its_maker_and_matrix_instructions(
    cpuinfo: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: cpuinfo)
    assert machine() == kind
