"""offers: what each cell of a study would cost to serve, from its answers and an engine's plan; and the advice."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice, TurnMode
from ringkv.base.page_counts import entries_read
from ringkv.base.selectors import SELECTORS
from ringkv.evaluation.bootstrap import mean_of
from ringkv.evaluation.cells import FULL, Cell, crossed, settings_of
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.journal import Record
from ringkv.evaluation.outcome import RULE_OF_THREE, outcome, width
from ringkv.evaluation.summary import paired
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.models.config import ModelConfig
from ringkv.plan import auto_policy
from ringkv.plan.complete import complete
from ringkv.plan.footprint import file_bytes, host_bytes, slot_bytes, step_bytes
from ringkv.plan.kv_settings import AT_START, OF_PAGES, SELECTION
from ringkv.plan.options import Options
from ringkv.plan.shapes import Shape

ROUND = 256  # the longest prompt is rounded up to a multiple
MACHINE = ("dtype", "weights", "activations", "device", "kv_format", "kv_format_skip")
LASTING = KVChoice(select=SELECTORS[auto_policy.LASTING["kv_select"]](), heads=auto_policy.LASTING["kv_heads"])
"""What any question may need is kept, so that questions may come later (docs/policies.md)."""


@dataclass(frozen=True)
class Offer:
    """One cache: what it costs in points on how many prompts, and the bytes of a slot.

    score: in percent. lost: points less than the full cache has, with the ends of the 95% interval; None for the full
    cache, and ends of None for too few prompts, as `outcome` defines them. slot_bytes: held for a request, on disk too.
    read_bytes: of them a decode step reads at most. flags: of `ringkv serve`. cost: measured times; None if there are
    none yet.
    """

    cell: str
    prompts: int
    score: float
    lost: float | None
    least_lost: float | None
    most_lost: float | None
    slot_bytes: int
    read_bytes: int
    flags: tuple[str, ...]
    cost: Cost | None = None


@dataclass(frozen=True)
class Advice:
    """chosen: one of the offers. why: in words. command: serves with it prompts of at most so many tokens."""

    chosen: Offer
    why: str
    command: str
    prompt_tokens: int
    offers: tuple[Offer, ...]

    @property
    def limit(self) -> str:
        """Say which prompts it is for."""
        return f"It is for prompts of up to {self.prompt_tokens:,} tokens, like the longest of these."


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
        complete(self.folder, self.config, _of_choice(self.options, KVChoice(FULL)))
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


def advise(
    served: Served, cells: Sequence[Cell], records: Sequence[Record], most_lost: float, costs: Mapping[str, Cost]
) -> Advice:
    """Return which cell to serve with. Raises InvalidRequest if the full cache has not answered any prompt."""
    compared = [replace(offer, cost=costs.get(offer.cell)) for offer in offers(served, cells, records)]
    if not compared:
        raise InvalidRequest("the full cache has no answer to compare with yet; raise minutes", "minutes")
    chosen, why = choose(compared, most_lost)
    command = shlex.join(("ringkv", "serve", *chosen.flags))
    return Advice(chosen, why, command, _longest(served, _scored(records)), tuple(compared))


def choose(offers: Sequence[Offer], most_lost: float) -> tuple[Offer, str]:
    """Return the offer with the fewest bytes, held and read, of those that lose at most so many points, and why.

    An offer counts as losing what the upper end of its interval says, so that chance does not recommend it. The full
    cache is always acceptable.
    """
    (full,) = (offer for offer in offers if offer.lost is None)
    if not full.score:
        return full, "it scores 0, so these prompts cannot show what another cache loses; look at their answers"
    good = [offer for offer in offers if offer.most_lost is not None and offer.most_lost <= most_lost]
    limit = f"{most_lost:g} points"
    if good:
        chosen = min((full, *good), key=lambda offer: offer.slot_bytes + offer.read_bytes)
        return chosen, f"of the caches that lose at most {limit} at 95% confidence it holds and reads the fewest bytes"
    if all(offer.most_lost is None for offer in offers):
        return full, f"{full.prompts} prompts are too few to say what a compressed cache loses; give more"
    return full, f"no other cache is sure to lose at most {limit}; more prompts may tell, or raise --max-loss"


def offers(served: Served, cells: Sequence[Cell], records: Sequence[Record]) -> list[Offer]:
    """Return an offer for each cell that has answers; none if the full cache has none. Perplexities do not count.

    If questions were in the next turn, servers continue conversations as the study did.
    """
    known = _scored(records)
    if all(record.cell != FULL for record in known):
        return []
    turns: TurnMode | None = "continue" if any(record.place == "next" for record in known) else None
    options = replace(served.options, prompt_tokens=_longest(served, known), kv_turns=turns)
    served = replace(served, options=options)
    return [offer for cell in cells if (offer := _offer(served, cell, known))]


def _scored(records: Sequence[Record]) -> list[Record]:
    """Return the records of answers. A prompt that only the full cache could answer has a score of 0."""
    answers = (record for record in records if not TASKS[record.task].is_loss)
    known = (replace(record, score=0.0) if record.error and record.cell != FULL else record for record in answers)
    return [record for record in known if record.score is not None]


def _longest(served: Served, records: Sequence[Record]) -> int:
    """Return the tokens of the longest prompt, rounded up."""
    longest = max(record.prompt_tokens for record in records)
    return min(served.config.context, -(-longest // ROUND) * ROUND)


def _offer(served: Served, cell: Cell, records: Sequence[Record]) -> Offer | None:
    """Return None for a cell without answers to prompts that the full cache answered, or that no engine can have."""
    by_task: dict[tuple[str, str], list[Record]] = defaultdict(list)
    full: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        for grouped, label in ((by_task, cell.label), (full, FULL)):
            if record.cell == label:
                grouped[record.task, record.place].append(record)
    pairs = [paired(answers, full[task]) for task, answers in by_task.items()]
    difference = mean_of([pair for pair in pairs if pair])
    if difference is None or not served.can_have(cell):
        return None
    lost, prompts = difference.through(lambda value: -100 * value), sum(map(len, by_task.values()))
    is_full = cell.choice.policy == FULL
    is_few = is_full or outcome(lost, prompts, more_is_better=False) == "few"
    most_lost = lost.high if width(lost) else lost.high + 100 * RULE_OF_THREE / prompts
    options = _options(served.options, cell)
    engine = complete(served.folder, served.config, options)
    shape = Shape.of(served.config, engine.model_dir.name).with_slots(engine.slot_format)
    entries, dtype = engine.capacity, engine.dtype
    return Offer(
        cell=cell.label,
        prompts=prompts,
        score=100 * fmean(fmean(record.score or 0.0 for record in answers) for answers in by_task.values()),
        lost=None if is_full else lost.mean,
        least_lost=lost.low if not is_few and isfinite(lost.low) else None,
        most_lost=most_lost if not is_few and isfinite(most_lost) else None,
        slot_bytes=sum(size(shape, entries, dtype) for size in (slot_bytes, file_bytes, host_bytes)),
        read_bytes=step_bytes(shape, entries, entries_read(engine.kv, entries, engine.page), dtype),
        flags=("--model", served.model, *_flags(options, cell)),
    )


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
    selection = (name for name in SELECTION if AT_START[name].field in settings_of(cell.choice))
    for name in (*selection, "kv_profile", "kv_turns", *MACHINE, *OF_PAGES):
        if (value := getattr(options, name)) is not None:
            flags = AT_START[name].flags if name in AT_START else None
            if flags and isinstance(value, bool):  # such as --kv-elastic/--kv-paper-layout
                yield flags.split("/")[0 if value else 1]
            else:
                yield from (f"--{name.replace('_', '-')}", str(value))
