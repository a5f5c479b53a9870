import io
import re

import pytest
from rich.console import Console

from ringkv.llm import watching as module
from ringkv.llm.watching import Bar, Lines, amount, watching


@pytest.mark.parametrize(
    ("done", "total", "says"),
    [(0, 0, ""), (0, 10, ""), (3, 10, "3 of 10"), (1500, 7000, "1,500 of 7,000"), (5 * 10**6, 10**7, "5 MB of 10 MB")],
)
def test_large_totals_are_bytes_and_small_ones_counts(done: int, total: int, says: str) -> None:
    assert amount(done, total) == says


def test_without_a_terminal_each_piece_of_work_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with watching() as tell:
        for done in range(5):
            tell(done, 5, "loading weights")
        tell(0, 0, "writing")
    captured = capsys.readouterr()
    assert captured.err == "loading weights\nwriting\n"
    assert captured.out == ""


def test_long_work_is_told_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 11.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    file = io.StringIO()
    tell = Lines(Console(file=file))
    for done in (0, 40, 80):
        tell(done, 100, "loading")
    assert file.getvalue() == "loading\nloading 80 of 100\n"


def test_once_stopped_nothing_is_said() -> None:
    file = io.StringIO()
    tell = Lines(Console(file=file))
    tell.stop()
    tell(1, 2, "loading")
    assert file.getvalue() == ""


def test_a_terminal_gets_one_bar_that_leaves_no_trace() -> None:
    file = io.StringIO()
    tell = Bar(Console(file=file, force_terminal=True, width=100, color_system=None))
    tell(1, 4, "loading weights")
    tell(4 * 10**6, 8 * 10**6, "downloading part 1 of 1")
    tell.stop()
    drawn = file.getvalue()
    assert "4 MB of 8 MB" in drawn
    assert re.search(r"\x1b\[2K$", drawn.rstrip("\n")), "the last line is not cleared"
