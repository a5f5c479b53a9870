import io

from rich.console import Console

from ringkv.base.events import KVUsage, Usage
from ringkv.cli.views import LineView, PanelView, View, Watched, view


def usage(drawn: int) -> Usage:
    kv = KVUsage("snapstream", 64, kept=64, evicted=100 - 64 + drawn - 1, ring_wraps=0, bytes_held=2048)
    return Usage(100, drawn, kv)


def watch(shown: View) -> None:
    """An answer of two tokens to a prompt of 100."""
    watched = Watched("Why?")
    with shown:
        for watched.done in (25, 50, 100):
            watched.total = 100
            shown.show(watched)
        for drawn, watched.text in ((1, "Be"), (2, "Because")):
            watched.usage = usage(drawn)
            shown.show(watched)


def test_without_a_terminal_the_answer_is_plain_lines() -> None:
    file = io.StringIO()
    watch(LineView(Console(file=file), "Why?"))
    assert file.getvalue().splitlines() == [
        "",
        "Why?",
        "(reading the prompt: 25 of 100 tokens)",
        "(reading the prompt: 50 of 100 tokens)",
        "(reading the prompt: 100 of 100 tokens)",
        "(100 prompt tokens | kept 64, evicted 36, 0 ring wraps | 2.05 kB held)",
        "Because",
        "(100 prompt tokens | kept 64, evicted 37, 0 ring wraps | 2.05 kB held)",
    ]


def test_on_a_terminal_the_panel_ends_with_the_whole_answer() -> None:
    file = io.StringIO()
    watch(PanelView(Console(file=file, force_terminal=True, width=100, color_system=None), "Why?"))
    last = file.getvalue().rpartition("Why?")[2]
    assert "Because" in last
    assert "evicted 37" in last


def test_the_console_decides() -> None:
    assert isinstance(view(Console(file=io.StringIO()), "Why?"), LineView)
    assert isinstance(view(Console(file=io.StringIO(), force_terminal=True), "Why?"), PanelView)
