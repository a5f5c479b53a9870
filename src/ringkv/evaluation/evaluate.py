"""evaluate: runs a study and stores its answers in a folder, from which a later run resumes.

study = Study("smollm2", tasks=("ruler",), cells=crossed(("full", "snapstream"), ("4x",), KVChoice()), lengths=(4096,))
evaluate(study, Options(), Path("answers"))
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from heapq import nlargest
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KEEP_EVERY_TOKEN, PAGES
from ringkv.base.progress import Progress, silent
from ringkv.base.version import VERSION
from ringkv.bench.round import run_round
from ringkv.engine.device_memory import free_bytes
from ringkv.evaluation import costs
from ringkv.evaluation.cells import FULL, usual
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.pending import Study, UnansweredPrompt, prepare
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.run import AHEAD, Runner, scored
from ringkv.evaluation.tasks import own
from ringkv.evaluation.tasks.catalogue import select_tasks
from ringkv.evaluation.tasks.source import Source
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.check_options import CONTEXT, check_options
from ringkv.plan.checks import at_least
from ringkv.plan.choose_kv import settings
from ringkv.plan.floor import prefill
from ringkv.plan.footprint import item_bytes
from ringkv.plan.head_profile import head_shares
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import AUTO, Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.text.repeat_words import repeat_words

SHORTEST = 256  # tokens of a prompt
PRIOR = 0.05  # weight of the estimate against the measured pace, as a share of the whole study
PROBE, STEPS = 1024, 6  # tokens of the prompt, and decode steps, that are timed first
SECOND_PREFILL = 512  # extra tokens of staging, for a selector that prefills the prompt twice


@dataclass(frozen=True)
class Pace:
    """operation: seconds of prefill per operation. step: seconds of a decode step with all slots in use."""

    operation: float
    step: float
    slots: int
    config: ModelConfig

    @classmethod
    def measured(cls, engine: Engine, config: ModelConfig) -> "Pace":
        tokens = min(PROBE, engine.limits.prompt_tokens)
        run_round(engine, min(BLOCK - 1, tokens), 2)  # warm-up; too short for the prefix store
        timed = run_round(engine, tokens, 1 + STEPS)
        operations = prefill(config, tokens, engine.limits.entry_bytes).operations
        return cls(timed.prefill / operations, median(timed.steps), engine.limits.slots, config)

    def seconds(self, item: UnansweredPrompt) -> float:
        """Seconds for a prompt and all its answers, at their maximum length and with all slots in use."""
        prefilled = self._prefill(len(item.prompt.tokens)) - self._prefill(item.shared)
        return prefilled + self.step * item.output * len(item.cells) / self.slots

    def _prefill(self, tokens: int) -> float:
        return self.operation * prefill(self.config, tokens, 0).operations

    def total(self, pending: Sequence[UnansweredPrompt]) -> float:
        return sum(map(self.seconds, pending))


def show_duration(seconds: float) -> str:
    """Format as "40 s", "12 min" or "3.5 h", in steps of at least 10 seconds."""
    if seconds < 95:
        return f"{10 * max(1, round(seconds / 10))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def evaluate(
    study: Study,
    options: Options,
    to: Path,
    progress: Progress = silent,
    seconds: float = inf,
    keeps_texts: bool = True,
) -> list[str]:
    """Run all prompts that the folder has no answer for. Returns sentences about what was left out.

    The run stops after this many `seconds` of measuring costs and answering; with 0 it only estimates the time. Each
    answer is written to disk when it finishes; without `keeps_texts`, without its text. Raises InvalidRequest for an
    invalid study, or for a folder with the answers of another one.
    """
    check(study, options)
    folder = locate(study.model, progress)
    config = load_config(folder)
    study = replace(study, lengths=study.lengths or (config.context,))
    at_least(SHORTEST, "lengths", max(study.lengths), SHORTEST, config.context, "the model's context")
    _check_workspace(study, options)
    options = _with_heads(options, study)
    journal = Journal(to, _about(study, options, config, folder))
    prompts = PromptBuilder(folder, max(study.lengths), config.context)
    source = Source(study.lengths, study.count, study.seed, study.data, prompts.count_tokens, study.prompts)
    pending, left_out = prepare(select_tasks(study.tasks), study, source, prompts, journal.done, progress)
    if any(item.task.is_relative for item in pending) and all(cell.choice.policy != FULL for cell in study.cells):
        raise InvalidRequest(
            "prompts without answers are compared with the full cache's answer; add full to the policies", "policies"
        )
    if not pending and not journal.records:
        raise InvalidRequest(f"no task can run: {'; '.join(left_out)}", "tasks")
    if not pending:
        return left_out
    if seconds == 0:
        options = options.filled(graphs="off")  # compiling them would take longer than the measurement
    engine = _engine(folder, config, options, pending, progress)
    pace = Pace.measured(engine, config)
    if seconds == 0:
        longest = pace.total(pending) + pace.seconds(_longest_prompt(pending))  # whose costs are measured first
        tokens = sum(len(item.prompt.tokens) for item in pending)
        amount = f"{len(pending):,} prompts of {tokens:,} tokens in all, {_answers(pending):,} answers"
        return [*left_out, f"{amount}: at most about {show_duration(longest)}"]
    from ringkv.engine.device import model_name  # here: invalid studies are refused before torch is loaded

    journal.begin({"machine": model_name(options.device), "version": VERSION})
    end = time.monotonic() + seconds
    _measure_costs(journal, engine, costs.engine_of(options), pending, end, progress)
    answered = _with_progress(Runner(engine, prompts.tokenizer), pending, pace, progress)
    records = scored(answered, journal.records)
    if not keeps_texts:
        records = (replace(record, text="") for record in records)
    for done, record in enumerate(records, 1):
        journal.add(record)
        if time.monotonic() > end and (left := _answers(pending) - done):
            return [*left_out, f"the time is over and {left:,} answers are left; the same command resumes"]
    return left_out


def _about(study: Study, options: Options, config: ModelConfig, folder: Path) -> dict[str, Any]:
    """The `about` of a journal. Labels of cells omit default settings, so the defaults are part of it.

    Other settings of all cells are in it if they are not the default, so that older journals go on.
    """
    dtype, weights = options.dtype or "bfloat16", options.weights or "bf16"
    stored = weights if dtype == "bfloat16" else dtype
    about: dict[str, Any] = {"model": study.model, "weights": stored, "seed": study.seed, "usual": usual()}
    if options.prefill_workspace is not None:
        about["prefill_workspace"] = options.prefill_workspace
    form, skip = options.kv_format or "plain", options.kv_format_skip
    if form != "plain":
        about["slots"] = form if skip is None else f"{form} skip={skip}"
    if options.kv_page not in (None, PAGES[0]):
        about["kv_page"] = options.kv_page
    if options.kv_profile is not None:
        shares = head_shares(folder, config, options, settings(options))
        about["kv_profile"] = sha256(repr(shares).encode()).hexdigest()[:12]
    return about


def _measure_costs(
    journal: Journal, engine: Engine, about: str, pending: Sequence[UnansweredPrompt], end: float, progress: Progress
) -> None:
    """Write what the cells of one prompt cost to the journal, except those that are there, until the time is over."""
    item, known = _longest_prompt(pending), costs.read(journal.path)
    measured = {(cost.cell, cost.prompt, cost.requests) for cost in known if cost.engine == about}
    tokens, slots = len(item.prompt.tokens), engine.limits.slots
    cells = tuple(cell for cell in item.cells if (cell.label, tokens, slots) not in measured)
    if not cells:
        return
    progress(0, 0, "measuring the time of prefill and steps under each cache")
    for cost in costs.measure(engine, replace(item, cells=cells)):
        journal.note({"cost": asdict(replace(cost, engine=about))})
        if time.monotonic() > end:
            return


def _with_progress(
    run: Runner, pending: Sequence[UnansweredPrompt], pace: Pace, progress: Progress
) -> Iterator[Record]:
    """Yield the records, and report progress with the time left, from the estimate and the pace so far."""
    total, answers = pace.total(pending), _answers(pending)
    share = {item.key(cell): pace.seconds(item) / len(item.cells) for item in pending for cell in item.cells}
    started, expected, prior = time.monotonic(), 0.0, PRIOR * total
    progress(0, answers, f"answering, about {show_duration(total)}")
    for done, record in enumerate(run.records(pending), 1):
        expected += share[record.key]
        slower = (time.monotonic() - started + prior) / (expected + prior)
        progress(done, answers, f"answering, about {show_duration((total - expected) * slower)} left")
        yield record


def _engine(
    folder: Path, config: ModelConfig, options: Options, pending: Sequence[UnansweredPrompt], progress: Progress
) -> Engine:
    """Build an engine with slots for the largest cell, staging for the longest prompt, and a prefix store if useful."""
    choices = [item.choice(cell) for item in pending for cell in item.cells]
    longest, entries = max(len(item.prompt.prefilled) for item in pending), max(item.capacity for item in pending)
    if any(choice.select.prefills_twice for choice in choices):
        longest = min(config.context, longest + SECOND_PREFILL)
    window = max(choice.window for choice in choices)
    options = replace(options, kv_budget=entries, kv_select="snapkv", kv_window=window, prompt_tokens=longest)
    if any(choice.reads_pages for choice in choices):
        options = replace(options, kv_policy="arkvale", output_tokens=max(1, entries - longest))
    if review := max(choice.review_interval for choice in choices):
        options = replace(options, kv_policy="scissorhands", kv_review=review)
    if options.prefix_store is None and any(item.shared for item in pending):
        options = replace(options, prefix_store=AUTO)
    if any(item.prompt.following for item in pending):
        options = replace(options, prefix_store=_bytes_of_turns(config, options, pending), kv_turns="continue")
    engine = resolve(folder, config, options, available_bytes(), free_bytes(options.device))
    progress(0, 0, "loading torch")
    from ringkv.engine.build import build  # here, as above

    return build(engine, progress, partial(repeat_words, folder))


def _bytes_of_turns(config: ModelConfig, options: Options, pending: Sequence[UnansweredPrompt]) -> int:
    """Return the bytes of prefix store that no first turn leaves before its next turn begins.

    Those are the prompts in progress, the slots of waiting first turns, and two turns of each running request.
    """

    def blocks_of(entries: int) -> int:
        return -(-entries // BLOCK)

    prompts = (len(item.prompt.tokens) for item in pending if item.shared < len(item.prompt.tokens))
    turns = AHEAD + 2 * (options.slots or 1)
    blocks = sum(map(blocks_of, nlargest(AHEAD + 1, prompts))) + turns * blocks_of(max(map(_most_kept, pending)))
    item = item_bytes(options.dtype or "bfloat16")
    return blocks * BLOCK * sum(group.token_bytes(item) for group in config.groups)


def _most_kept(item: UnansweredPrompt) -> int:
    """Return the entries of the largest of a prompt's slots when they are saved."""
    prompt = len(item.prompt.tokens)
    keeps_every = any(cell.choice.policy in KEEP_EVERY_TOKEN for cell in item.cells)
    return prompt + item.added if keeps_every else item.capacity


def _longest_prompt(pending: Sequence[UnansweredPrompt]) -> UnansweredPrompt:
    """Return the longest of the prompts with the most cells, whose costs are measured."""
    most = max(len(item.cells) for item in pending)
    return max((item for item in pending if len(item.cells) == most), key=lambda item: len(item.prompt.tokens))


def _answers(pending: Sequence[UnansweredPrompt]) -> int:
    return sum(len(item.cells) for item in pending)


def check(study: Study, options: Options) -> None:
    """Raise InvalidRequest for a study that no model can have. It is called before the model is downloaded."""
    choices = [cell.choice for cell in study.cells]
    at_least(1, "count", study.count, 1)
    at_least(SHORTEST, "lengths", min(study.lengths, default=SHORTEST), SHORTEST)
    if not choices:
        raise InvalidRequest("there is no policy to evaluate; name some with --policies", "policies")
    _check_workspace(study, options)
    paged = {choice.policy for choice in choices if choice.reads_pages}
    if paged and any(choice.review_interval for choice in choices):
        raise InvalidRequest(
            f"{min(paged)} and scissorhands need slots of different kinds; evaluate them one after the other",
            "policies",
        )
    special = next((choice.policy for choice in choices if choice.reads_pages or choice.review_interval), AUTO)
    options = _with_heads(options, study).filled(kv_policy=special, kv_budget=CONTEXT)  # cells have their budgets
    check_options(options)
    select_tasks(study.tasks)
    if study.prompts is not None:
        own.check(study.prompts, study.count)


def _with_heads(options: Options, study: Study) -> Options:
    """Return the options of slots that heads divide, which serve all cells, if some cell has them."""
    heads = {cell.choice.heads for cell in study.cells} - {"equal"}
    return replace(options, kv_heads="profile" if "profile" in heads else "global") if heads else options


def _check_workspace(study: Study, options: Options) -> None:
    """Raise InvalidRequest if prompts are longer than the workspace, and a policy keeps every token."""
    workspace, keeping = options.prefill_workspace, {cell.choice.policy for cell in study.cells} & {*KEEP_EVERY_TOKEN}
    if workspace is not None and workspace < max(study.lengths, default=0) and keeping:
        raise InvalidRequest(
            f"policies has {min(keeping)}, which keeps every token, and prompts of more than {workspace:,} tokens, the "
            f"prefill_workspace, are compressed while they are prefilled; leave {min(keeping)} out of policies, and "
            "evaluate it without prefill_workspace in another folder",
            "policies",
        )
