"""kept: the tokens of one prompt that each layer and head kept under each cell, as data for a plot.

L layers, H key-value heads.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
ANSWERS, QUESTION, TOKENS = "answers", "question", "tokens"  # arrays of the file that are no cell's


@dataclass(frozen=True)
class Kept:
    """shares: float [L * H, BINS], the share of each bin of the prompt that was kept."""

    cell: str
    shares: np.ndarray
    heads: int


@dataclass(frozen=True)
class Landmarks:
    """Where things stand in the prompt, as shares of its tokens.

    tokens: its length, 0 if it is not known. answers: each reference answer that stands there once. question: where
    the question begins, if it is in the prompt.
    """

    tokens: int = 0
    answers: tuple[float, ...] = ()
    question: float | None = None


def landmarks(item: UnansweredPrompt, decode: Callable[[Sequence[int]], str]) -> Landmarks:
    """Find the landmarks of a prompt. Its tokens were cut from texts, so they are searched for decoded."""
    tokens, question = item.prompt.tokens, item.prompt.question
    text = decode(tokens[: len(tokens) - question])
    once = [text.index(one) for one in item.sample.references if one.strip() and text.count(one) == 1]
    answers = tuple(sorted(_token_at(tokens, at, decode) / len(tokens) for at in once))
    return Landmarks(len(tokens), answers, 1 - question / len(tokens) if question else None)


def _token_at(tokens: Sequence[int], at: int, decode: Callable[[Sequence[int]], str]) -> int:
    """Return the token that has the character at this place of the decoded text."""
    return bisect_right(range(len(tokens)), at, key=lambda count: len(decode(tokens[: count + 1])))


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


def write(folder: Path, found: Sequence[Kept], marks: Landmarks | None = None) -> None:
    arrays = {f"{one.heads}/{one.cell}": (255 * one.shares).astype(np.uint8) for one in found}
    if marks is not None:
        arrays |= {TOKENS: np.array(marks.tokens), ANSWERS: np.array(marks.answers)}
    if marks is not None and marks.question is not None:
        arrays[QUESTION] = np.array(marks.question)
    np.savez_compressed(folder / NAME, **arrays)  # type: ignore[arg-type]  # names are its keywords


def read(folder: Path) -> Iterator[Kept]:
    """Yield the maps in a folder; none if the folder has no file."""
    if not (folder / NAME).is_file():
        return
    with np.load(folder / NAME) as arrays:
        for name, shares in arrays.items():
            heads, is_map, cell = name.partition("/")
            if is_map:
                yield Kept(cell, shares / 255, int(heads))


def read_landmarks(folder: Path) -> Landmarks:
    """Return the landmarks in a folder; files of older versions have none."""
    with np.load(folder / NAME) as arrays:
        if TOKENS not in arrays:
            return Landmarks()
        question = float(arrays[QUESTION]) if QUESTION in arrays else None
        return Landmarks(int(arrays[TOKENS]), tuple(arrays[ANSWERS].tolist()), question)


def _shares(kept: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return float [L * H, bins] from each entry's prompt token, int [H, live] for each layer."""
    bins = min(BINS, n)
    edges = np.linspace(0, n, bins + 1)
    sizes = np.histogram(np.arange(n), edges)[0]
    return np.stack([np.histogram(row, edges)[0] / sizes for layer in kept for row in layer])
