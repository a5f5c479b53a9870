"""Plots of a report. Each is an SVG for inclusion in a page, without scripts or external resources."""

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas

from ringkv.evaluation.cells import FULL
from ringkv.evaluation.summary import CellScore

matplotlib.rcParams.update(
    {"svg.hashsalt": "ringkv", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)
COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
GREY = "#6b7280"


def against_budget(title: str, figures: Sequence[CellScore]) -> str:
    """Plot a task's score by policy over the share of the prompt that was kept. The full cache is a horizontal line."""
    canvas = Canvas(figsize=(3.6, 2.6), layout="constrained")
    axes = canvas.subplots()
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for figure in figures:
        if figure.mean is not None:
            lines[policy_of(figure.cell)].append((100 * figure.kept, figure.mean))
    for _, full in lines.pop(FULL, []):
        axes.axhline(full, color=GREY, linestyle="--", linewidth=1, label=FULL)
    for colour, (policy, points) in zip(COLOURS * 9, sorted(lines.items()), strict=False):
        axes.plot(*zip(*sorted(points), strict=True), "o-", color=colour, markersize=4, label=policy)
    axes.set(title=title, xlabel="% of the prompt held", xlim=(0, 102))
    if all(figure.mean is None or figure.mean <= 100 for figure in figures):
        axes.set_ylim(0, 102)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    return _svg(canvas, title)


def heat(title: str, found: Mapping[tuple[float, int], float]) -> str:
    """Plot a heat map of percent found at each depth and length, for a single needle. Green is all, red is none."""
    depths, lengths = sorted({depth for depth, _ in found}), sorted({length for _, length in found})
    grid = np.array([[found.get((depth, length), np.nan) for length in lengths] for depth in depths])
    canvas = Canvas(figsize=(1.9 + 0.5 * len(lengths), 1.2 + 0.22 * len(depths)), layout="constrained")
    axes = canvas.subplots()
    axes.imshow(grid, cmap="RdYlGn", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
    axes.set_title(title, fontsize=8)
    axes.set(xlabel="prompt tokens", ylabel="depth")
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            shown, colour = "" if np.isnan(value) else f"{value:.0f}", "black" if 20 < value < 80 else "white"
            axes.text(column, row, shown, ha="center", va="center", fontsize=7, color=colour)
    return _svg(canvas, title)


def over_position(title: str, losses: Mapping[str, Sequence[float]], bins: int = 16) -> str:
    """Plot the perplexity of the tokens after a compressed prefix over their position, for each cell."""
    canvas = Canvas(figsize=(7.2, 2.8), layout="constrained")
    axes = canvas.subplots()
    for colour, (cell, values) in zip(COLOURS * 9, losses.items(), strict=False):
        parts = np.array_split(np.asarray(values, dtype=float), min(bins, len(values)))
        ends = np.cumsum([len(part) for part in parts])
        colour = GREY if cell == FULL else colour
        axes.plot(ends, [np.exp(-part.mean()) for part in parts], color=colour, label=cell, linewidth=1.2)
    axes.set(title=title, xlabel="tokens after the prefix", ylabel="perplexity")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    return _svg(canvas, title)


def kept_map(title: str, shares: np.ndarray, heads: int) -> str:
    """Plot the kept tokens of one prompt: shares [layers * heads, bins], dark if all tokens of a bin were kept."""
    canvas = Canvas(figsize=(7.2, 1.2 + 0.016 * len(shares)), layout="constrained")
    axes = canvas.subplots()
    axes.imshow(
        shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=(0, 100, len(shares), 0)
    )
    layers = range(0, len(shares) // heads + 1, 4)
    axes.set_yticks([heads * layer for layer in layers], [str(layer) for layer in layers])
    axes.set(title=title, xlabel="% of the prompt", ylabel="layer")
    return _svg(canvas, title)


def policy_of(cell: str) -> str:
    """Return a cell's label without its budget."""
    policy, *rest = cell.split()
    return " ".join([policy, *rest[1:]])


def _svg(canvas: Canvas, title: str) -> str:
    """Return the SVG element alone, with its title as a label for screen readers."""
    file = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Title": title}
    canvas.savefig(file, format="svg", metadata=metadata)
    text = file.getvalue()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
