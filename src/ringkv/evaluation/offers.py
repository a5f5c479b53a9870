"""offers: what each cell of a study would cost to serve, from its answers and the plan of an engine; and the advice."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, TurnMode
from ringkv.base.page_counts import entries_read
from ringkv.base.selectors import SELECTORS
from ringkv.evaluation.advice import Advice, Offer, choose
from ringkv.evaluation.bootstrap import Interval, mean_of
from ringkv.evaluation.cells import FULL, Cell, crossed, settings_of
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.journal import Record
from ringkv.evaluation.outcome import RULE_OF_THREE, outcome, width
from ringkv.evaluation.summary import paired, points
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.models.config import ModelConfig
from ringkv.plan import auto_policy
from ringkv.plan.complete import complete
from ringkv.plan.footprint import file_bytes, host_bytes, slot_bytes, step_bytes
from ringkv.plan.kv_settings import AT_START, OF_PAGES, SelectionSettings
from ringkv.plan.kv_settings import settings_of as declared_by
from ringkv.plan.options import Options
from ringkv.plan.shapes import Shape

ROUND = 256  # the longest prompt is rounded up to a multiple
MACHINE = ("dtype", "weights", "activations", "device", "kv_format", "kv_format_skip")
SELECTION = declared_by(SelectionSettings)
LASTING = KVChoice(select=SELECTORS[auto_policy.LASTING["kv_select"]](), heads=auto_policy.LASTING["kv_heads"])
"""What any question may need is kept, so that questions may come later (docs/policies.md)."""


@dataclass(frozen=True)
class Served:
    """What is to be served: a model with the study's options."""

    model: str
    folder: Path
    config: ModelConfig
    options: Options

    def usable(self, policies: Sequence[str]) -> list[str]:
        """Return the policies that the model can have with these options.

        Raises InvalidRequest, with the reason, if it cannot have full, which the others are compared with.
        """
        self._complete(FULL)
        return [policy for policy in policies if self.can_have(Cell(KVChoice(policy)))]

    def in_next_turns(self, budgets: Sequence[str]) -> list[Cell]:
        """Return the cells that lose least if questions come in the next turn and a slot has so many entries.

        The first is the full cache. There are none if the user has set how tokens are selected or recalled, or the
        model cannot have them. No slots serve both these and arkvale, so they need a study of their own.
        """
        named = {name for name in (*SELECTION, "kv_profile", *OF_PAGES) if getattr(self.options, name) is not None}
        cells = crossed((FULL, "snapstream"), budgets, LASTING)
        return [] if named or not all(map(self.can_have, cells)) else cells

    def can_have(self, cell: Cell) -> bool:
        """Return whether an engine can have a cell's choice and budget."""
        try:
            complete(self.folder, self.config, _options(self.options, cell))
        except InvalidRequest:
            return False
        return True

    def _complete(self, policy: str) -> None:
        complete(self.folder, self.config, _of_choice(self.options, KVChoice(policy)))


def advise(
    served: Served, cells: Sequence[Cell], records: Sequence[Record], most_lost: float, costs: Mapping[str, Cost]
) -> Advice:
    """Return which cell to serve with. Raises InvalidRequest if the full cache has not answered any prompt."""
    found = [replace(one, cost=costs.get(one.cell)) for one in offers(served, cells, records)]
    if not found:
        raise InvalidRequest("the full cache has no answer to compare with yet; raise minutes", "minutes")
    chosen, why = choose(found, most_lost)
    command = shlex.join(("ringkv", "serve", *chosen.flags))
    return Advice(chosen, why, command, _longest(served, _scored(records)), tuple(found))


def offers(served: Served, cells: Sequence[Cell], records: Sequence[Record]) -> list[Offer]:
    """Return an offer for each cell that has answers; none if the full cache has none. Perplexities do not count.

    If questions were in the next turn, servers continue conversations as the study did.
    """
    known = _scored(records)
    if all(one.cell != FULL for one in known):
        return []
    turns: TurnMode | None = "continue" if any(one.place == "next" for one in known) else None
    options = replace(served.options, prompt_tokens=_longest(served, known), kv_turns=turns)
    served = replace(served, options=options)
    return [one for cell in cells if (one := _offer(served, cell, known))]


def _scored(records: Sequence[Record]) -> list[Record]:
    """Return the records of answers. A prompt that only the full cache could answer has a score of 0."""
    own = (one for one in records if not TASKS[one.task].is_loss)
    known = (replace(one, score=0.0) if one.error and one.cell != FULL else one for one in own)
    return [one for one in known if one.score is not None]


def _longest(served: Served, records: Sequence[Record]) -> int:
    """Return the tokens of the longest prompt, rounded up."""
    longest = max(one.prompt_tokens for one in records)
    return min(served.config.context, -(-longest // ROUND) * ROUND)


def _offer(served: Served, cell: Cell, records: Sequence[Record]) -> Offer | None:
    by_task = list(_by_task(cell, records))
    if not by_task or not served.can_have(cell):
        return None
    options = _options(served.options, cell)
    engine = complete(served.folder, served.config, options)
    held, read = _sizes(served.config, engine)
    lost = _lost(by_task, records)
    if lost is None:
        return None
    is_full, prompts = cell.choice.policy == FULL, sum(map(len, by_task))
    is_few = outcome(lost, prompts, more_is_better=False) == "few"
    most_lost = lost.high if width(lost) else lost.high + 100 * RULE_OF_THREE / prompts
    return Offer(
        cell=cell.label,
        prompts=prompts,
        score=100 * fmean(fmean(one.score or 0.0 for one in some) for some in by_task),
        lost=None if is_full else lost.mean,
        least_lost=None if is_full or is_few else _end(lost.low),
        most_lost=None if is_full or is_few else _end(most_lost),
        slot_bytes=held,
        read_bytes=read,
        flags=("--model", served.model, *_flags(options, cell)),
    )


def _by_task(cell: Cell, records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield a cell's records of each task and place."""
    own = [one for one in records if one.cell == cell.label]
    for task in dict.fromkeys((one.task, one.place) for one in own):
        yield [one for one in own if (one.task, one.place) == task]


def _lost(by_task: Sequence[Sequence[Record]], records: Sequence[Record]) -> Interval | None:
    """Return the points lost, as the mean over tasks with pairs of answers; None if there are none."""
    full = [one for one in records if one.cell == FULL]
    pairs = [
        paired(some, [one for one in full if (one.task, one.place) == (some[0].task, some[0].place)])
        for some in by_task
    ]
    found = mean_of([some for some in pairs if some])
    return found and found.through(lambda difference: -points(difference))


def _end(value: float) -> float | None:
    return value if isfinite(value) else None


def _sizes(config: ModelConfig, engine: EngineConfig) -> tuple[int, int]:
    """Return the bytes of a slot, in its tier too, and those of them that a decode step reads at most."""
    shape = Shape.of(config, engine.model_dir.name).with_slots(engine.slot_format)
    entries, dtype = engine.capacity, engine.dtype
    held = sum(of(shape, entries, dtype) for of in (slot_bytes, file_bytes, host_bytes))
    return held, step_bytes(shape, entries, entries_read(engine.kv, entries, engine.page), dtype)


def _options(options: Options, cell: Cell) -> Options:
    """Return the options of one engine that serves a cell's choice by default. A budget by share has the longest's."""
    is_share = cell.budget is not None and cell.budget.endswith("x")
    lasting = (cell.choice.select, cell.choice.heads) == (LASTING.select, LASTING.heads)
    options = replace(
        _of_choice(options, cell.choice),
        kv_budget=int(cell.budget) if cell.budget and not is_share else None,
        kv_compression=cell.budget if is_share else None,
    )
    return replace(options, **auto_policy.LASTING) if lasting else options


def _of_choice(options: Options, choice: KVChoice) -> Options:
    """Return the options with a choice's policy, without what is set of pages or of selection if it has none."""
    of_pages = () if choice.reads_pages else OF_PAGES
    of_selection = (*SELECTION, "kv_profile") if choice.policy == FULL else ()
    return replace(options, kv_policy=choice.policy, **dict.fromkeys((*of_pages, *of_selection)))


def _flags(options: Options, cell: Cell) -> Iterator[str]:
    """Yield the flags that set a cell's choice, its budget, and what the user has set beside them."""
    yield from ("--kv-policy", cell.choice.policy)
    if cell.budget is not None:
        yield from ("--kv-compression" if options.kv_compression else "--kv-budget", cell.budget)
    yield from ("--max-prompt", str(options.prompt_tokens))
    selection = (name for name, setting in SELECTION.items() if setting.field in settings_of(cell.choice))
    for name in (*selection, "kv_profile", "kv_turns", *MACHINE, *OF_PAGES):
        if (value := getattr(options, name)) is not None:
            yield from _flag(name, value)


def _flag(name: str, value: object) -> tuple[str, ...]:
    """Return a setting as it is written on the command line."""
    setting = AT_START.get(name)
    if setting and setting.flags and isinstance(value, bool):
        return (setting.flags.split("/")[0 if value else 1],)
    return f"--{name.replace('_', '-')}", str(value)
