"""costs: what each cell of a study costs beside accuracy: the time of a prompt and of a step, and what a step reads."""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ringkv.base.engine import Engine, prefill
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import most_read
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.bench.round import step
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.plan.options import Options

log = logging.getLogger(__name__)
STEPS, WARM = 8, 2  # decode steps of a cell, and how many of them are not timed
SALT = "costs"  # nothing of this prompt is in the prefix store


@dataclass(frozen=True)
class Cost:
    """What one prompt costs under a cell, on the machine and in the engine of the study, which serves all its cells.

    prompt: its tokens. requests: those of a step, all with this prompt, so they choose the same experts. prefill:
    seconds until its slot is filled, selection included; 0 if the cell cannot have this prompt. step: seconds of a
    decode step. held, read: entries of each head in the slot, and those that a step reads. recalled: pages of each head
    that a step copied from a GPU's host or read from a file, on average. engine: see `engine_of`.
    """

    cell: str
    prompt: int
    requests: int
    prefill: float = 0.0
    step: float = 0.0
    held: int = 0
    read: int = 0
    recalled: float = 0.0
    engine: str = ""


def engine_of(options: Options) -> str:
    """Say what of an engine its times depend on, besides the model and what a journal says of its study."""
    threads = f"{options.threads} threads" if options.threads else ""
    tier = f"tier {options.kv_tier}" if options.kv_tier else ""
    slots = f"{options.slots} slots" if options.slots else ""
    return ", ".join(filter(None, (options.device or "cpu", threads, slots, tier)))


def measure(engine: Engine, item: UnansweredPrompt) -> Iterator[Cost]:
    """Prefill a prompt once, and yield what it costs under each of its cells. Nobody else uses the engine."""
    sampling = SamplingParams(max_tokens=_steps(item) + 1, temperature=0.0, ignore_eos=True)
    request = Request("cost", item.prompt.tokens, sampling, salt=SALT)
    started = time.perf_counter()
    prefill(engine, request)
    prefilled = time.perf_counter() - started
    for cell in item.cells:
        yield _cost(engine, item, cell, replace(request, kv=item.choice(cell)), prefilled)


def _cost(engine: Engine, item: UnansweredPrompt, cell: Cell, request: Request, prefilled: float) -> Cost:
    """Return the cost of a cell. One that fails has none, and does not end the study: its answers will say why."""
    none = Cost(cell.label, len(request.tokens), engine.limits.slots)
    try:
        engine.admit(request)
        return _measured(engine, request, item.choice(cell), _steps(item), replace(none, prefill=prefilled))
    except InvalidRequest:
        return none
    except Exception as error:
        log.error("the cost of %s could not be measured", cell.label, exc_info=error)
        return none
    finally:
        for slot in range(engine.limits.slots):
            engine.release(slot)


def _measured(engine: Engine, request: Request, choice: KVChoice, steps: int, prefilled: Cost) -> Cost:
    """Insert a lane's prompt into every slot, and run steps. The slots stay in use."""
    started = time.perf_counter()
    layout = engine.compress(0, choice)[0]
    engine.insert(0, 0, request)
    selected = time.perf_counter() - started
    for slot in range(1, engine.limits.slots):
        engine.insert(0, slot, request)
    engine.sample().read()
    seconds = [step(engine) for _ in range(steps)]
    held = layout.live(layout.prompt)
    return replace(
        prefilled,
        prefill=prefilled.prefill + selected,
        step=median(seconds[WARM:] or seconds),
        held=held,
        read=min(held, most_read(layout, engine.limits.page) * engine.limits.page) if layout.read else held,
        recalled=(engine.recalled(0) or 0) / len(seconds),
    )


def _steps(item: UnansweredPrompt) -> int:
    """Return how many tokens are fed after the prompt: at most those for which its slots have room."""
    return max(1, min(STEPS, item.added - 1))


def read(journal: Path) -> list[Cost]:
    """Return the costs in a journal: the last of each cell, prompt length, number of requests and engine."""
    if not journal.is_file():
        return []
    with journal.open(encoding="utf-8") as file:
        measured = [Cost(**line["cost"]) for line in map(json.loads, file) if "cost" in line]
    return list({(cost.cell, cost.prompt, cost.requests, cost.engine): cost for cost in measured}.values())
