"""Draw docs/memory.svg: cache bytes of one request against tokens seen, a full cache and a slot of fixed size.

    python scripts/picture.py [FILE]

The figures come from `ringkv.plan`; the colours are readable on white and on black, so one file serves both.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ringkv.plan.footprint import token_bytes
from ringkv.plan.shapes import known
from ringkv.plan.units import show_bytes

TARGET = Path(__file__).parent.parent / "docs" / "memory.svg"
TEXT, FULL, OURS = "#6e7781", "#e0602e", "#2f81f7"
WIDTH, HEIGHT = 880, 330
TOP, BOTTOM = 74, 276  # of both plots
STYLE = f"""
    text {{ font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: {TEXT} }}
    .title {{ font-size: 15px; font-weight: 600 }}
    .full {{ stroke: {FULL} }} text.full {{ fill: {FULL}; stroke: none; font-weight: 600 }}
    .ours {{ stroke: {OURS} }} text.ours {{ fill: {OURS}; stroke: none; font-weight: 600 }}
    polyline {{ fill: none; stroke-width: 3; stroke-linejoin: round }}
    .grid {{ stroke: {TEXT}; stroke-opacity: .3 }}
"""


@dataclass(frozen=True)
class Plot:
    """One model; `left` and `right` are the ends of its axis on the page."""

    model: str
    title: str
    budget: int  # entries
    tokens: tuple[int, ...]  # marks on the axis, the last being its end
    left: int
    right: int

    @property
    def entry(self) -> int:
        """Bytes of one entry in bfloat16, all layers."""
        return token_bytes(known(self.model), "bfloat16")

    def x(self, tokens: int) -> float:
        return self.left + (self.right - self.left) * tokens / self.tokens[-1]

    def y(self, entries: int) -> float:
        return BOTTOM - (BOTTOM - TOP) * entries / self.tokens[-1]


PLOTS = (
    Plot("llama-3.1-8b", "Llama-3.1-8B", 8192, (0, 32768, 65536, 98304, 131072), 66, 408),
    Plot("smollm2", "SmolLM2-135M", 1024, (0, 2048, 4096, 6144, 8192), 508, 850),
)


def picture() -> str:
    about = "Bytes of cache of one request: a full cache grows with the context, a ringkv slot does not."
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{about}">',
            f"  <style>{STYLE}  </style>",
            _text(0, 16, "Cache memory of one request, by tokens in its context (bfloat16)", "title"),
            *(line for plot in PLOTS for line in _plot(plot)),
            "</svg>\n",
        )
    )


def _plot(plot: Plot) -> list[str]:
    end = plot.tokens[-1]
    flat = show_bytes(plot.budget * plot.entry)
    return [
        _text(plot.left, 48, f"{plot.title}: {plot.entry:,} bytes a token"),
        *(_mark(plot, tokens) for tokens in plot.tokens),
        _line("full", [(plot.x(0), plot.y(0)), (plot.x(end), plot.y(end))]),
        _line("ours", [(plot.x(0), plot.y(plot.budget)), (plot.x(end), plot.y(plot.budget))]),
        _text(plot.x(end * 13 // 16), plot.y(end * 7 // 8) + 5, f"full: {show_bytes(end * plot.entry)}", "full", "end"),
        _text(plot.right, plot.y(plot.budget) - 9, f"ringkv, {plot.budget:,} entries: {flat}", "ours", "end"),
        _text((plot.left + plot.right) / 2, BOTTOM + 44, "tokens", anchor="middle"),
    ]


def _mark(plot: Plot, tokens: int) -> str:
    """A line across, the bytes that so many tokens take, and their number below."""
    y = plot.y(tokens)
    return "\n".join(
        (
            f'  <line class="grid" x1="{plot.left}" y1="{y:.1f}" x2="{plot.right}" y2="{y:.1f}"/>',
            _text(plot.left - 8, y + 4, show_bytes(tokens * plot.entry) if tokens else "0", anchor="end"),
            _text(plot.x(tokens), BOTTOM + 22, f"{tokens // 1024}k" if tokens else "0", anchor="middle"),
        )
    )


def _line(kind: str, points: list[tuple[float, float]]) -> str:
    return f'  <polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'  <text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET).write_text(picture(), encoding="utf-8")
