"""evaluate: runs a study and stores its answers in a folder, from which a later run resumes.

study = Study("smollm2", tasks=("ruler",), cells=crossed(("full", "snapstream"), ("4x",), KVChoice()), lengths=(4096,))
evaluate(study, Options(), Path("answers"))
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from heapq import nlargest
from math import inf
from pathlib import Path
from typing import Any

from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, DIGESTS, KEEP_EVERY_TOKEN, PAGES, UNREAD, KVChoice
from ringkv.base.progress import Progress, silent
from ringkv.base.version import VERSION
from ringkv.engine.device_memory import free_bytes
from ringkv.evaluation import costs
from ringkv.evaluation.agreement import scored
from ringkv.evaluation.cells import FULL, Cell, usual
from ringkv.evaluation.estimate import Pace, show_duration
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.pending import UnansweredPrompt, prepare
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.run import AHEAD, Runner
from ringkv.evaluation.sample import Place
from ringkv.evaluation.tasks.catalogue import select_tasks
from ringkv.evaluation.tasks.source import Source
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.choose_kv import settings
from ringkv.plan.footprint import item_bytes
from ringkv.plan.head_profile import head_shares
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import AUTO, Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.text.repeat_words import repeat_words

SHORTEST = 256  # tokens of a prompt
PRIOR = 0.05  # weight of the estimate against the measured pace, as a share of the whole study
SECOND_PREFILL = 512  # extra tokens of staging, for a selector that prefills the prompt twice


@dataclass(frozen=True)
class Study:
    """Tasks by name or group. Each prompt is run under each of `cells`, with its question at each of `places`.

    lengths: tokens of generated prompts, answers included; real prompts are cut to the longest; none: to the context.
    count: prompts of each task and length. data: a folder with the data sets that tasks read. prompts: a file of the
    user's own prompts.
    """

    model: str
    tasks: Sequence[str]
    cells: Sequence[Cell]
    lengths: Sequence[int] = (4096,)
    places: Sequence[Place] = ("inside",)
    count: int = 10
    seed: int = 0
    data: Path | None = None
    prompts: Path | None = None


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
    folder = locate(study.model, progress)
    config = load_config(folder)
    study = replace(study, lengths=study.lengths or (config.context,))
    options = _with_heads(options, study.cells)
    _check(study, config.context)
    _check_workspace(study, options.prefill_workspace)
    journal = Journal(to, _about(study, options, config, folder))
    prompts = PromptBuilder(folder, max(study.lengths), config.context)
    source = Source(study.lengths, study.count, study.seed, study.data, prompts.count_tokens, study.prompts)
    pending, left_out = prepare(select_tasks(study.tasks), study, source, prompts, journal.done, progress)
    _check_compared(study.cells, pending)
    if not pending:
        _check_answered(journal, left_out)
        return left_out
    engine = _engine(folder, config, options, pending, progress)
    pace = Pace.measured(engine, config)
    if seconds == 0:
        return [*left_out, f"{_workload(pending)}: at most about {show_duration(_total(pace, pending))}"]
    journal.begin({"machine": _machine(options.device), "version": VERSION})
    end = time.monotonic() + seconds
    _measure_costs(journal, engine, costs.engine_of(options), pending, end, progress)
    answered = _with_progress(Runner(engine, prompts.tokenizer), pending, pace, progress)
    records = scored(answered, journal.records)
    if not keeps_texts:
        records = (replace(one, text="") for one in records)
    if left := _write_records(journal, records, pending, end):
        left_out.append(f"the time is over and {left:,} answers are left; the same command resumes")
    return left_out


def _check_compared(cells: Sequence[Cell], pending: Sequence[UnansweredPrompt]) -> None:
    """Raise InvalidRequest if answers are compared with the full cache's, and it has none."""
    if any(item.task.is_relative for item in pending) and all(cell.choice.policy != FULL for cell in cells):
        raise InvalidRequest(
            "prompts without answers are compared with the full cache's answer; add full to the policies", "policies"
        )


def _check_answered(journal: Journal, left_out: Sequence[str]) -> None:
    """Raise InvalidRequest if there are no answers because no task's prompts could be made."""
    if not journal.records:
        raise InvalidRequest(f"no task can run: {'; '.join(left_out)}", "tasks")


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
    for name, (usual_one, *_) in {"kv_page": PAGES, "kv_digest": DIGESTS, "kv_unread": UNREAD}.items():
        if getattr(options, name) not in (None, usual_one):
            about[name] = getattr(options, name)
    if options.kv_profile is not None:
        shares = head_shares(folder, config, options, settings(options))
        about["kv_profile"] = sha256(repr(shares).encode()).hexdigest()[:12]
    return about


def _with_heads(options: Options, cells: Sequence[Cell]) -> Options:
    """Return the options with slots that heads divide if those of a cell do; by the model's profile if one needs it."""
    heads = {cell.choice.heads for cell in cells} - {"equal"}
    if not heads:
        return options
    return replace(options, kv_heads="profile" if "profile" in heads else "adaptive")


def _measure_costs(
    journal: Journal, engine: Engine, about: str, pending: Sequence[UnansweredPrompt], end: float, progress: Progress
) -> None:
    """Write what the cells of one prompt cost to the journal, except those that are there, until the time is over."""
    item, known = _longest_prompt(pending), costs.read(journal.path)
    measured = {(one.cell, one.prompt, one.requests) for one in known if one.engine == about}
    tokens, slots = len(item.prompt.tokens), engine.limits.slots
    cells = tuple(cell for cell in item.cells if (cell.label, tokens, slots) not in measured)
    if not cells:
        return
    progress(0, 0, "measuring the time of prefill and steps under each cache")
    for one in costs.measure(engine, replace(item, cells=cells)):
        journal.note({"cost": asdict(replace(one, engine=about))})
        if time.monotonic() > end:
            return


def _total(pace: Pace, pending: Sequence[UnansweredPrompt]) -> float:
    """Return the seconds of all answers, and of what their costs are measured with: one more prompt."""
    return pace.total(pending) + pace.seconds(_longest_prompt(pending))


def _write_records(journal: Journal, records: Iterable[Record], pending: Sequence[UnansweredPrompt], end: float) -> int:
    """Write each record to the journal. Returns the number of answers left when the time is over."""
    for done, record in enumerate(records, 1):
        journal.add(record)
        if time.monotonic() > end:
            return _answers(pending) - done
    return 0


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
    longest = max(len(item.prompt.whole) for item in pending)
    window = max((item.choice(cell).window for item in pending for cell in item.cells), default=1)
    entries = max(item.capacity for item in pending)
    if any(cell.choice.select.prefills_twice for item in pending for cell in item.cells):
        longest = min(config.context, longest + SECOND_PREFILL)
    options = replace(options, kv_budget=entries, kv_select="snapkv", kv_window=window, prompt_tokens=longest)
    options = replace(options, kv_read=None)  # a cell's own
    if any(cell.choice.reads_pages for item in pending for cell in item.cells):
        options = replace(options, kv_policy="arkvale", output_tokens=max(1, entries - longest))
    review = max(cell.choice.review_interval for item in pending for cell in item.cells)
    if review:
        options = replace(options, kv_policy="scissorhands", kv_review=review)
    if options.prefix_store is None and any(item.shared for item in pending):
        options = replace(options, prefix_store=AUTO)
    if any(item.prompt.following for item in pending):
        options = replace(options, prefix_store=_bytes_of_turns(config, options, pending), kv_turns="continue")
    engine = resolve(folder, config, options, available_bytes(), free_bytes(options.device))
    progress(0, 0, "loading torch")
    from ringkv.engine.build import build  # here: invalid studies are refused before torch is loaded

    return build(engine, progress, partial(repeat_words, folder))


def _machine(device: str | None) -> str:
    from ringkv.engine.device import model_name  # here, as above

    return model_name(device)


def _bytes_of_turns(config: ModelConfig, options: Options, pending: Sequence[UnansweredPrompt]) -> int:
    """Return the bytes of prefix store that no first turn leaves before its next turn begins.

    Those are the prompts in progress, the slots of waiting first turns, and two turns of each running request.
    """
    prompts = (len(item.prompt.tokens) for item in pending if item.shared < len(item.prompt.tokens))
    turns = AHEAD + 2 * (options.slots or 1)
    blocks = sum(map(_blocks, nlargest(AHEAD + 1, prompts))) + turns * _blocks(max(map(_most_kept, pending)))
    return blocks * BLOCK * sum(group.elements for group in config.groups) * item_bytes(options.dtype or "bfloat16")


def _blocks(entries: int) -> int:
    return -(-entries // BLOCK)


def _most_kept(item: UnansweredPrompt) -> int:
    """Return the entries of the largest of a prompt's slots when they are saved."""
    prompt = len(item.prompt.tokens)
    every = any(cell.choice.policy in KEEP_EVERY_TOKEN for cell in item.cells)
    return prompt + item.added if every else item.capacity


def _longest_prompt(pending: Sequence[UnansweredPrompt]) -> UnansweredPrompt:
    """Return the longest of the prompts with the most cells, whose costs are measured."""
    most = max(len(item.cells) for item in pending)
    return max((item for item in pending if len(item.cells) == most), key=lambda item: len(item.prompt.tokens))


def _answers(pending: Sequence[UnansweredPrompt]) -> int:
    return sum(len(item.cells) for item in pending)


def _workload(pending: Sequence[UnansweredPrompt]) -> str:
    tokens = sum(len(item.prompt.tokens) for item in pending)
    return f"{len(pending):,} prompts of {tokens:,} tokens in all, {_answers(pending):,} answers"


def _check(study: Study, context: int) -> None:
    longest, shortest = max(study.lengths), min(study.lengths)
    if longest > context:
        raise InvalidRequest(f"lengths reach {longest:,} and the model's context is {context:,}; lower them", "lengths")
    for name, value, least in (("count", study.count, 1), ("lengths", shortest, SHORTEST)):
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}", name)
    if not study.cells:
        raise InvalidRequest("there is no policy to evaluate; name some with --policies", "policies")
    _check_slots([cell.choice for cell in study.cells])


def _check_workspace(study: Study, size: int | None) -> None:
    """Raise InvalidRequest if prompts are compressed while they are prefilled, and a policy keeps every token."""
    longest, policies = max(study.lengths), {cell.choice.policy for cell in study.cells}
    if size is not None and size < longest and (whole := policies.intersection(KEEP_EVERY_TOKEN)):
        raise InvalidRequest(
            f"policies has {min(whole)}, which keeps every token, and prompts of more than {size:,} tokens, the "
            f"prefill_workspace, are compressed while they are prefilled; leave {min(whole)} out of policies, and "
            "evaluate it without prefill_workspace in another folder",
            "policies",
        )


def _check_slots(choices: Sequence[KVChoice]) -> None:
    """Raise InvalidRequest if no engine's slots serve all choices."""
    paged = {choice.policy for choice in choices if choice.reads_pages}
    if paged and any(choice.review_interval for choice in choices):
        raise InvalidRequest(
            f"{min(paged)} and scissorhands need slots of different kinds; evaluate them one after the other",
            "policies",
        )
