import json
from pathlib import Path

from bench.performance import PAGE, page


def test_the_page_is_what_the_kept_results_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_without_results_every_bar_is_there_and_not_measured(tmp_path: Path) -> None:
    text = page(tmp_path, tmp_path / "none.md")
    bars = [line for line in text.splitlines() if line.endswith("| not measured | not measured |")]
    assert len(bars) > 30
    assert "met" not in {cell.strip(" *") for line in text.splitlines() for cell in line.split("|")}


def test_notes_and_a_benchmarks_own_table_are_taken_over(tmp_path: Path) -> None:
    about = {"workload": {}, "machine": "m", "versions": {}, "commit": "c", "date": "d", "figures": []}
    (tmp_path / "flat.json").write_text(json.dumps(about | {"figures": [dict.fromkeys(FLAT, 1)]}))
    (tmp_path / "flat.md").write_text("| a table |\n")
    (tmp_path / "notes.md").write_text("## Tried\n\nThis and that.\n")
    text = page(tmp_path, tmp_path / "notes.md")
    assert "| a table |" in text
    assert "This and that." in text
    assert "| `flat` | m |  | c | d |" in text


FLAT = ("weights", "slots", "staging", "early", "late", "peak")
