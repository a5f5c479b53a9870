"""evaluate: from a study to its answers, its table and its report, in a folder that the next run goes on from.

study = Study("smollm2", tasks=("ruler",), cells=crossed(("full", "snapstream"), ("4x",), KVChoice()), lengths=(4096,))
evaluate(study, Options(), Path("answers"))
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from ringkv.base.engine import Engine
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress, silent
from ringkv.base.version import VERSION
from ringkv.evaluation import kept
from ringkv.evaluation.cells import Cell, settings_of
from ringkv.evaluation.estimate import Pace, spoken
from ringkv.evaluation.journal import Journal, Record
from ringkv.evaluation.prompt import Prompts
from ringkv.evaluation.run import Run
from ringkv.evaluation.sample import Place
from ringkv.evaluation.tasks.catalogue import chosen
from ringkv.evaluation.tasks.source import Source
from ringkv.evaluation.work import Work, prepare
from ringkv.machine import processor
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import AUTO, Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

SHORTEST = 256  # tokens of a prompt
TRUST = 0.05  # of all the work: how much of it must be done until what it took outweighs what was expected
AGAIN = 512  # tokens of staging beside the longest prompt, for a selector that reads it again


@dataclass(frozen=True)
class Study:
    """What is asked: `tasks` by name or group, each prompt under each of `cells`, its question at each of `places`.

    lengths: of generated prompts, in tokens, their answers included; real ones are cut to the longest. count: prompts
    of each task (and length). data: a folder with the data sets that tasks read.
    """

    model: str
    tasks: Sequence[str]
    cells: Sequence[Cell]
    lengths: Sequence[int] = (4096,)
    places: Sequence[Place] = ("inside",)
    count: int = 10
    seed: int = 0
    data: Path | None = None


def evaluate(
    study: Study,
    options: Options,
    to: Path,
    tell: Progress = silent,
    seconds: float = inf,
    keeps_texts: bool = True,
) -> list[str]:
    """Ask all that the folder has no answer to yet; what was left out, and why, in sentences.

    It ends after so many `seconds` of answering; with 0, once it is known how long all would take. Every answer is on
    disk once it is there; without `keeps_texts`, its score and figures only. Raises InvalidRequest for a study that
    cannot be, or a folder that holds another one's answers.
    """
    folder = locate(study.model, tell)
    config = load_config(folder)
    _check(study, config.context)
    journal = Journal(to, _about(study, options))
    prompts = Prompts(folder, max(study.lengths), config.context)
    source = Source(study.lengths, study.count, study.seed, study.data, prompts.tokens)
    works, left_out = prepare(chosen(study.tasks), study, source, prompts, journal.done, tell)
    if not works:
        _is_answered(journal, left_out)
        return left_out
    engine = _engine(folder, config, options, works, tell)
    pace = Pace.measured(engine, config)
    if seconds == 0:
        return [*left_out, f"{_counted(works)}: at most about {spoken(pace.total(works))}"]
    journal.begin({"machine": processor.name(), "version": VERSION})
    records = _watched(Run(engine, prompts.tokenizer), works, pace, tell)
    if not keeps_texts:
        records = (replace(one, text="") for one in records)
    if left := _answer(journal, records, works, seconds):
        return [*left_out, f"the time is over and {left:,} answers are left; the same again goes on"]
    if not (to / kept.NAME).is_file():
        kept.write(to, kept.measure(engine, _pictured(works)))
    return left_out


def _is_answered(journal: Journal, left_out: Sequence[str]) -> None:
    """Nothing is left to ask: right where there are answers, an error where no task could be made."""
    if not journal.records:
        raise InvalidRequest(f"no task can be asked: {'; '.join(left_out)}", "tasks")


def _about(study: Study, options: Options) -> dict[str, Any]:
    """What all answers of one folder share; labels of cells leave the usual settings out, so those too."""
    usual = " ".join(f"{name}={value}" for name, value in settings_of(KVChoice()).items())
    numbers, weights = options.dtype or "bfloat16", options.weights or "bf16"
    stored = weights if numbers == "bfloat16" else numbers
    return {"model": study.model, "weights": stored, "seed": study.seed, "usual": usual}


def _answer(journal: Journal, records: Iterable[Record], works: Sequence[Work], seconds: float) -> int:
    """Write each record down as it comes; how many are left when the time is over."""
    end = time.monotonic() + seconds
    for done, record in enumerate(records, 1):
        journal.add(record)
        if time.monotonic() > end:
            return _answers(works) - done
    return 0


def _watched(run: Run, works: Sequence[Work], pace: Pace, tell: Progress) -> Iterator[Record]:
    """Records, with progress in answers, and the time left from what those so far were expected to take and took."""
    total, answers = pace.total(works), _answers(works)
    share = {work.key(cell): pace.seconds(work) / len(work.cells) for work in works for cell in work.cells}
    started, expected, trust = time.monotonic(), 0.0, TRUST * total
    tell(0, answers, f"answering, about {spoken(total)}")
    for done, record in enumerate(run.records(works), 1):
        expected += share[record.key]
        slower = (time.monotonic() - started + trust) / (expected + trust)
        tell(done, answers, f"answering, about {spoken((total - expected) * slower)} left")
        yield record


def _engine(folder: Path, config: ModelConfig, options: Options, works: Sequence[Work], tell: Progress) -> Engine:
    """With slots for the largest cell, staging for the longest prompt, and memory for what prompts have in common."""
    longest = max(len(work.prompt.tokens) for work in works)
    window = max((work.choice(cell).window for work in works for cell in work.cells), default=1)
    entries = max(work.capacity for work in works)
    if any(cell.choice.select.prefills_twice for work in works for cell in work.cells):
        longest = min(config.context, longest + AGAIN)
    options = replace(options, kv_budget=entries, kv_select="snapkv", kv_window=window, prompt_tokens=longest)
    if options.prefix_store is None and any(work.begun for work in works):
        options = replace(options, prefix_store=AUTO)
    engine = resolve(folder, config, options, available_bytes())
    tell(0, 0, "loading torch")
    from ringkv.engine.build import build  # here, so that all that can be refused without torch has been

    return build(engine, tell)


def _pictured(works: Sequence[Work]) -> Work:
    """The prompt whose kept tokens are shown: the first of the longest, with as many cells as any has."""
    most = max(len(work.cells) for work in works)
    return max((work for work in works if len(work.cells) == most), key=lambda work: len(work.prompt.tokens))


def _answers(works: Sequence[Work]) -> int:
    return sum(len(work.cells) for work in works)


def _counted(works: Sequence[Work]) -> str:
    tokens = sum(len(work.prompt.tokens) for work in works)
    return f"{len(works):,} prompts of {tokens:,} tokens in all, {_answers(works):,} answers"


def _check(study: Study, context: int) -> None:
    longest, shortest = max(study.lengths), min(study.lengths)
    if longest > context:
        raise InvalidRequest(
            f"lengths reach {longest:,} and the model's context is {context:,}; ask for less", "lengths"
        )
    for name, value, least in (("count", study.count, 1), ("lengths", shortest, SHORTEST)):
        if value < least:
            raise InvalidRequest(f"{name} is {value}; it must be at least {least}", name)
    if not study.cells:
        raise InvalidRequest("there is no policy to evaluate; name some with --policies", "policies")
