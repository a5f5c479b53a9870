"""Bar: one target, what was measured of it, and whether that is enough."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.report import table

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Bar:
    """number: its group, of `GROUPS`. measured: a figure for each case, None where there is none.

    target: None for what is shown and has none.
    """

    number: str
    claim: str
    measured: Mapping[str, float | None]
    target: float | None
    show: Callable[[float], str]
    at_most: bool = False

    @property
    def verdict(self) -> str:
        found = [figure for figure in self.measured.values() if figure is not None]
        if not found:
            return NOT_MEASURED
        if self.target is None:
            return "shown"
        if not all(self._is_met(figure, self.target) for figure in found):
            return "**missed**"
        return "met" if len(found) == len(self.measured) else "met where measured"

    def _is_met(self, figure: float, target: float) -> bool:
        return figure <= target if self.at_most else figure >= target

    @property
    def row(self) -> tuple[str, ...]:
        target = "" if self.target is None else f"{'at most' if self.at_most else 'at least'} {self.show(self.target)}"
        return (self.claim, target, self._figures(), self.verdict)

    def _figures(self) -> str:
        if all(figure is None for figure in self.measured.values()):
            return NOT_MEASURED
        return "; ".join(
            f"{case}: {'?' if figure is None else self.show(figure)}" if case else f"{self.show(figure or 0.0)}"
            for case, figure in self.measured.items()
        )


# number -> what its bars are about
GROUPS = {
    "1": "Long prompts, the same number of requests for all",
    "2": "Long prompts, equal cache bytes, each engine's largest batch",
    "3": "Nothing evicted; short prompts; prefill",
    "4": "How near the floor",
    "5": "Memory",
    "6": "The first token",
    "7": "GPU",
    "8": "Serving and compressing",
    "9": "The second turn of a conversation",
    "10": "Structured answers",
}


def bars_table(bars: list[Bar]) -> str:
    """A table for each group."""
    groups = {number: [bar.row for bar in bars if bar.number == number] for number in GROUPS}
    head = ("", "target", "measured", "")
    return "\n\n".join(f"### {GROUPS[number]}\n\n{table(head, rows)}" for number, rows in groups.items() if rows)


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def percent(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%")


def mebibytes(size: float) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def seconds(taken: float) -> str:
    return f"{taken:.1f} s"


def milliseconds(taken: float) -> str:
    return f"{taken * 1e3:.1f} ms"
