"""The pages show the measured figures."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.report.__main__ import BLOCK, PAGES, ROOT, files, filled, main
from bench.results import RESULTS

RATIO = re.compile(r"\b\d+\.\d+x\b")
INTERVAL = re.compile(r"[+-]\d+\.\d+(?: points|%)? \[[+-]\d+\.\d+,\s[+-]\d+\.\d+\]")


@pytest.fixture(scope="module")
def written() -> Mapping[Path, str]:
    return files()


def test_tables_plots_and_data_are_those_of_the_results(written: Mapping[Path, str]) -> None:
    stale = [path.relative_to(ROOT) for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m bench.report"


def test_a_block_is_replaced_and_the_text_around_it_stays() -> None:
    page = "before\n<!-- report:one -->\nold\n<!-- /report -->\nbetween\n<!-- report:two -->\n<!-- /report -->\nafter\n"
    new = filled(page, {"one": lambda: "1", "two": lambda: "2"})
    assert new == page.replace("old", "1").replace("two -->\n", "two -->\n2\n")
    assert filled(new, {"one": lambda: "1", "two": lambda: "2"}) == new


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_ratios_and_intervals_in_the_text_are_in_the_tables_too(page: Path, written: Mapping[Path, str]) -> None:
    """Figures in sentences are copied by hand, so each must be one that the report computed."""
    everything = "\n".join(block for text in written.values() for block in _blocks(text))
    prose = " ".join(BLOCK.sub("", page.read_text(encoding="utf-8")).split())
    ratios = set(RATIO.findall(everything))
    assert [ratio for ratio in RATIO.findall(prose) if ratio not in ratios] == []
    intervals = _intervals() | {found.split(" [")[1] for found in INTERVAL.findall(everything)}
    assert [found for found in INTERVAL.findall(prose) if found.split(" [")[1] not in intervals] == []


@pytest.mark.parametrize("name", ["targets", "claims", "sampling", "deployments", "rank_answers"])
def test_a_table_that_no_page_shows_is_printed_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(f"report:{name} " not in page.read_text(encoding="utf-8") for page in PAGES)
    monkeypatch.setattr("sys.argv", ["report", name])
    main()
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]) > 5


def test_an_unknown_table_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["report", "nonsense"])
    with pytest.raises(SystemExit):
        main()
    assert "no table nonsense" in capsys.readouterr().err


def _blocks(text: str) -> list[str]:
    return [found.group() for found in BLOCK.finditer(text)]


def _intervals() -> set[str]:
    """Return the intervals in the pages' format: "-7.1, +0.1]"."""
    with (RESULTS / "accuracy.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["low"]]
    return {f"{float(line['low']):+.1f}, {float(line['high']):+.1f}]" for line in lines}
