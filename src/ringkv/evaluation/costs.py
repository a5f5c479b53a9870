"""costs: what each cell of a study costs beside accuracy: the time of a prompt and of a step, and what a step reads."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from ringkv.base.engine import Engine, prefill
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import Layout
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.pending import UnansweredPrompt

STEPS, WARM = 8, 2  # decode steps of a cell, and how many of them are not timed
SALT = "costs"  # nothing of this prompt is in the prefix store


@dataclass(frozen=True)
class Cost:
    """What one prompt costs under a cell, on the machine and with the graphs of the study.

    prompt: its tokens. prefill: seconds until its first token, selection included. step: seconds of a decode step of
    so many requests. held, read: entries of each head in the slot, and those that a step reads. recalled: pages of each
    head that a step copied from a GPU's host or read from a file, on average.
    """

    cell: str
    prompt: int
    prefill: float
    step: float
    requests: int
    held: int
    read: int
    recalled: float = 0.0


def measure(engine: Engine, item: UnansweredPrompt) -> Iterator[Cost]:
    """Prefill a prompt once, and yield what it costs under each of its cells. Nobody else uses the engine."""
    sampling = SamplingParams(max_tokens=_steps(item) + 1, temperature=0.0, ignore_eos=True)
    request = Request("cost", item.prompt.tokens, sampling, salt=SALT)
    started = time.perf_counter()
    prefill(engine, request)
    prefilled = time.perf_counter() - started
    for cell in item.cells:
        with suppress(InvalidRequest):  # the prompt is too short for this cell
            yield _cost(engine, item, cell, replace(request, kv=item.choice(cell)), prefilled)


def _cost(engine: Engine, item: UnansweredPrompt, cell: Cell, request: Request, prefilled: float) -> Cost:
    started = time.perf_counter()
    layout = engine.compress(0, item.choice(cell))[0]
    engine.insert(0, 0, request)
    engine.sample().read()
    selected = time.perf_counter() - started
    engine.release(0)
    steps, recalled = _decode(engine, request, _steps(item))
    held = layout.live(layout.prompt)
    return Cost(
        cell=cell.label,
        prompt=len(request.tokens),
        prefill=prefilled + selected,
        step=median(steps[WARM:] or steps),
        requests=engine.limits.slots,
        held=held,
        read=_read(layout, held),
        recalled=recalled / len(steps),
    )


def _decode(engine: Engine, request: Request, steps: int) -> tuple[list[float], int]:
    """Return the seconds of steps with a request in every slot, and the pages that those of one slot recalled."""
    slots = range(engine.limits.slots)
    for slot in slots:
        engine.insert(0, slot, request)
    engine.sample().read()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.forward()
        engine.sample().read()
        seconds.append(time.perf_counter() - started)
    recalled = engine.recalled(0) or 0
    for slot in slots:
        engine.release(slot)
    return seconds, recalled


def _steps(item: UnansweredPrompt) -> int:
    """Return how many tokens are fed after the prompt: at most those for which its slots have room."""
    return max(1, min(STEPS, item.added - 1))


def _read(layout: Layout, held: int) -> int:
    return min(held, layout.read) if layout.read else held


def line(found: Iterator[Cost]) -> dict[str, list[dict[str, object]]]:
    """Return the line of a journal that has these costs."""
    return {"costs": [asdict(one) for one in found]}


def read(journal: Path) -> dict[str, Cost]:
    """Return the costs in a journal, by cell; those that were measured last."""
    if not journal.is_file():
        return {}
    with journal.open(encoding="utf-8") as file:
        lines = [one["costs"] for one in map(json.loads, file) if "costs" in one]
    return {cost["cell"]: Cost(**cost) for some in lines for cost in some}
