import io
import re

import pytest
from rich.console import Console

from ringkv.llm import show_progress as module
from ringkv.llm.show_progress import ProgressBar, ProgressLines, amount, show_progress


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [(0, 0, ""), (0, 10, ""), (3, 10, "3 of 10"), (1500, 7000, "1,500 of 7,000"), (5 * 10**6, 10**7, "5 MB of 10 MB")],
)
def test_large_totals_are_bytes_and_small_ones_counts(done: int, total: int, text: str) -> None:
    assert amount(done, total) == text


def test_without_a_terminal_each_piece_of_work_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress() as report:
        for done in range(5):
            report(done, 5, "loading weights")
        report(0, 0, "writing")
    captured = capsys.readouterr()
    assert captured.err == "loading weights\nwriting\n"
    assert captured.out == ""


def test_long_work_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 11.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    file = io.StringIO()
    report = ProgressLines(Console(file=file))
    for done in (0, 40, 80):
        report(done, 100, "loading")
    assert file.getvalue() == "loading\nloading 80 of 100\n"


def test_a_stopped_display_shows_nothing() -> None:
    file = io.StringIO()
    report = ProgressLines(Console(file=file))
    report.stop()
    report(1, 2, "loading")
    assert file.getvalue() == ""


def test_a_terminal_gets_one_bar_that_leaves_no_trace() -> None:
    file = io.StringIO()
    report = ProgressBar(Console(file=file, force_terminal=True, width=100, color_system=None))
    report(1, 4, "loading weights")
    report(4 * 10**6, 8 * 10**6, "downloading part 1 of 1")
    report.stop()
    output = file.getvalue()
    assert "4 MB of 8 MB" in output
    assert re.search(r"\x1b\[2K$", output.rstrip("\n")), "the last line is not cleared"
