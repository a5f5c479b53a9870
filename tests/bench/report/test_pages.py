"""The pages show the measured figures."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.data import REPOSITORY
from bench.report.__main__ import BLOCK, PAGES, files, filled, main, tables
from bench.results import RESULTS

RATIO = re.compile(r"\b\d+\.\d+x\b")
RECORDED = re.compile(r"<!-- recorded:(\w+) -->\n.*?<!-- /recorded -->", re.DOTALL)
INTERVAL = re.compile(r"[+-]\d+\.\d+(?: points|%)? \[[+-]\d+\.\d+,\s[+-]\d+\.\d+\]")


@pytest.fixture(scope="module")
def written() -> Mapping[Path, str]:
    return files()


def test_tables_plots_and_data_are_those_of_the_results(written: Mapping[Path, str]) -> None:
    stale = [path.relative_to(REPOSITORY) for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m bench.report"


def test_a_block_is_replaced_and_the_text_around_it_stays() -> None:
    page = "before\n<!-- report:one -->\nold\n<!-- /report -->\nbetween\n<!-- report:two -->\n<!-- /report -->\nafter\n"
    new = filled(page, {"one": lambda: "1", "two": lambda: "2"})
    assert new == page.replace("old", "1").replace("two -->\n", "two -->\n2\n")
    assert filled(new, {"one": lambda: "1", "two": lambda: "2"}) == new


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_ratios_and_intervals_in_the_text_are_in_the_tables_too(page: Path, written: Mapping[Path, str]) -> None:
    """Figures in sentences are copied by hand, so each must be in a table that is computed or recorded."""
    everything = "\n".join(block for text in written.values() for block in _blocks(text))
    prose = " ".join(RECORDED.sub("", BLOCK.sub("", page.read_text(encoding="utf-8"))).split())
    ratios = set(RATIO.findall(everything))
    assert [ratio for ratio in RATIO.findall(prose) if ratio not in ratios] == []
    intervals = _intervals() | {found.split(" [")[1] for found in INTERVAL.findall(everything)}
    assert [found for found in INTERVAL.findall(prose) if found.split(" [")[1] not in intervals] == []


def test_a_table_is_printed_by_its_name(
    written: Mapping[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["report", "faults"])
    main()
    assert capsys.readouterr().out.strip() in written[REPOSITORY / "docs" / "serving.md"]


def test_a_recorded_table_is_one_of_a_commit_with_the_code_that_made_it() -> None:
    recorded = [name for page in PAGES for name in RECORDED.findall(page.read_text(encoding="utf-8"))]
    assert recorded
    assert not set(recorded) & tables().keys()


def test_an_unknown_table_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["report", "nonsense"])
    with pytest.raises(SystemExit):
        main()
    assert "no table nonsense" in capsys.readouterr().err


def _blocks(text: str) -> list[str]:
    return [found.group() for blocks in (BLOCK, RECORDED) for found in blocks.finditer(text)]


def _intervals() -> set[str]:
    """Return the intervals in the pages' format: "-7.1, +0.1]"."""
    with (RESULTS / "accuracy.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["low"]]
    return {f"{float(line['low']):+.1f}, {float(line['high']):+.1f}]" for line in lines}
