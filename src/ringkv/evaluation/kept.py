"""kept: the tokens of one prompt that each layer and head kept under each cell, as data for a plot.

L layers, H key-value heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringkv.base.engine import Engine, prefill
from ringkv.base.errors import InvalidRequest
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.evaluation.pending import UnansweredPrompt

NAME = "kept.npz"
BINS = 200  # of a prompt's length


@dataclass(frozen=True)
class Kept:
    """shares: float [L * H, BINS], the share of each bin of the prompt that was kept."""

    cell: str
    shares: np.ndarray
    heads: int


def measure(engine: Engine, item: UnansweredPrompt) -> list[Kept]:
    """Prefill one prompt and select tokens under each of its cells. Nothing is decoded."""
    request = Request("kept", item.prompt.tokens, SamplingParams())
    prefill(engine, request)
    found = []
    for cell in item.cells:
        with suppress(InvalidRequest):  # the prompt is too short for this cell
            kept = engine.kept(0, item.choice(cell))
            found.append(Kept(cell.label, _shares(kept, len(request.tokens)), len(kept[0])))
    return found


def write(folder: Path, found: Sequence[Kept]) -> None:
    arrays = {f"{one.heads}/{one.cell}": (255 * one.shares).astype(np.uint8) for one in found}
    np.savez_compressed(folder / NAME, **arrays)  # type: ignore[arg-type]  # names are its keywords


def read(folder: Path) -> Iterator[Kept]:
    """Yield the maps in a folder; none if the folder has no file."""
    if not (folder / NAME).is_file():
        return
    with np.load(folder / NAME) as arrays:
        for name, shares in arrays.items():
            heads, _, cell = name.partition("/")
            yield Kept(cell, shares / 255, int(heads))


def _shares(kept: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return float [L * H, bins] from each entry's prompt token, int [H, live] for each layer."""
    bins = min(BINS, n)
    edges = np.linspace(0, n, bins + 1)
    sizes = np.histogram(np.arange(n), edges)[0]
    return np.stack([np.histogram(row, edges)[0] / sizes for layer in kept for row in layer])
