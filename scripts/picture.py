"""Draw docs/memory.svg: cache bytes against concurrent requests, with full caches and with ringkv.

    python scripts/picture.py [FILE]

The sizes are computed by `ringkv.plan`. The colours are readable on white and on black.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ringkv.plan.footprint import token_bytes
from ringkv.plan.shapes import known
from ringkv.plan.units import show_bytes

TARGET = Path(__file__).parent.parent / "docs" / "memory.svg"
REQUESTS = (1, 2, 4, 8)
WIDTH, HEIGHT = 880, 330
TOP, BOTTOM = 96, 276  # y coordinates of both plots
BAR = 30
STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
    .title { font-size: 15px; font-weight: 600 } .size { font-size: 11.5px }
    .full { fill: #e0602e } .slots { fill: #2f81f7 } .staging { fill: #2f81f7; fill-opacity: .35 }
    line { stroke: #57606a; stroke-opacity: .4 }
    @media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } line { stroke: #c9d1d9 } }
"""
LEGEND = (
    ("full", "a full cache for each request"),
    ("staging", "ringkv: staging, one full cache shared by all"),
    ("slots", "ringkv: a slot for each request"),
)


@dataclass(frozen=True)
class Plot:
    """The plot of one model; `left` and `right` are its x coordinates."""

    model: str
    title: str
    prompt: int  # tokens
    budget: int  # entries of a slot
    left: int
    right: int

    @property
    def staging(self) -> int:
        """Bytes of one prompt's full cache in bfloat16."""
        return self.prompt * token_bytes(known(self.model), "bfloat16")

    @property
    def slot(self) -> int:
        return self.budget * token_bytes(known(self.model), "bfloat16")

    def height(self, size: int) -> float:
        return (BOTTOM - TOP) * size / (REQUESTS[-1] * self.staging)


PLOTS = (
    Plot("llama-3.1-8b", "Llama-3.1-8B, prompts of 128k, slots of 8,192 entries", 131072, 8192, 10, 420),
    Plot("smollm2", "SmolLM2-135M, prompts of 8k, slots of 1,024 entries", 8192, 1024, 460, 870),
)


def picture() -> str:
    about = (
        "Cache memory by concurrent requests: ringkv stages one full cache, then adds a small slot for each request."
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{about}">',
            f"  <style>{STYLE}  </style>",
            _text(0, 16, "Cache memory by concurrent requests (bfloat16)", "title"),
            *_legend(),
            *(line for plot in PLOTS for line in _plot(plot)),
            "</svg>\n",
        )
    )


def _legend() -> list[str]:
    lines, x = [], 0
    for kind, text in LEGEND:
        lines += [_box(kind, x, 32, 12, 12), _text(x + 18, 43, text)]
        x += 42 + 7 * len(text)
    return lines


def _plot(plot: Plot) -> list[str]:
    lines = [_text(plot.left, 72, plot.title)]
    lines.append(f'  <line x1="{plot.left}" y1="{BOTTOM}" x2="{plot.right}" y2="{BOTTOM}"/>')
    for place, requests in enumerate(REQUESTS):
        x = plot.left + (plot.right - plot.left) * (place + 0.5) / len(REQUESTS)
        lines += _pair(plot, requests, x)
        lines.append(_text(x, BOTTOM + 20, f"{requests}", anchor="middle"))
    return [*lines, _text((plot.left + plot.right) / 2, BOTTOM + 42, "requests", anchor="middle")]


def _pair(plot: Plot, requests: int, x: float) -> list[str]:
    """Two bars with their sizes above: a full cache for each request, and ringkv."""
    full, staging, slots = requests * plot.staging, plot.staging, requests * plot.slot
    tops = [BOTTOM - plot.height(size) for size in (full, staging, staging + slots)]
    return [
        _box("full", x - BAR - 1, tops[0], BAR, plot.height(full)),
        _box("staging", x + 1, tops[1], BAR, plot.height(staging)),
        _box("slots", x + 1, tops[2], BAR, plot.height(slots)),
        _text(x - 4, tops[0] - 5, show_bytes(full), "size", "end" if requests > 1 else "middle"),
        _text(x + 4, tops[2] - 5 - 14 * (requests == 1), show_bytes(staging + slots), "size"),
    ]


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'  <rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'  <text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET).write_text(picture(), encoding="utf-8")
