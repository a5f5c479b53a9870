import json
from pathlib import Path

import pytest

from bench.performance import PAGES, Page, page

NONE = Page("none", Path("none.md"), "# A page")


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.kind)
def test_a_page_is_what_the_kept_results_make(one: Page) -> None:
    assert one.path.read_text(encoding="utf-8") == page(one)


def test_without_results_every_bar_is_there_and_not_measured(tmp_path: Path) -> None:
    text = page(NONE, tmp_path, tmp_path)
    bars = [line for line in text.splitlines() if line.endswith("| not measured | not measured |")]
    assert len(bars) > 30
    assert "met" not in {cell.strip(" *") for line in text.splitlines() for cell in line.split("|")}


def test_notes_and_a_benchmarks_own_table_are_taken_over(tmp_path: Path) -> None:
    about = {"workload": {}, "machine": "m", "versions": {}, "commit": "c", "date": "d", "figures": []}
    folder = tmp_path / NONE.kind
    folder.mkdir()
    (folder / "flat.json").write_text(json.dumps(about | {"figures": [dict.fromkeys(FLAT, 1)]}))
    (folder / "flat.md").write_text("| a table |\n")
    (tmp_path / "none.md").write_text("## Tried\n\nThis and that.\n")
    text = page(NONE, tmp_path, tmp_path)
    assert text.startswith("# A page")
    assert "| a table |" in text
    assert "This and that." in text
    assert "| `flat` | m |  | c | d |" in text


FLAT = ("weights", "slots", "staging", "early", "late", "peak")
