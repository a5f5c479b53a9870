"""ringkv profile: measure how much of the entries each head of a model needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.cannot import refuse
from ringkv.base.config import HeadShares
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress
from ringkv.base.wanted import of_model, of_slots
from ringkv.cli.document import MANUAL, read_windows
from ringkv.cli.options import WHAT_A_MODEL_IS, AsJson, ComputeOptions, unpanelled
from ringkv.cli.output import print_json, print_stderr
from ringkv.cli.prompts import read_file
from ringkv.llm.show_progress import show_progress
from ringkv.machine.folders import unwritable
from ringkv.machine.interrupts import uninterrupted
from ringkv.plan.check_options import check_options
from ringkv.plan.options import Options

if TYPE_CHECKING:
    from ringkv.engine.engine import LocalEngine
    from ringkv.models.config import ModelConfig

WINDOW = 2048  # tokens of a part, which is repeated
TOKENS = 8 * WINDOW
SHORTEST = 64  # tokens of a part
BESIDE = 256  # of the context: words that ask for the repetition, and whole chunks
BUDGET, PASS = 256, 64  # entries of a slot, which is not used; tokens that are repeated in a pass
BINS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)  # shares of the histogram, in averages
WIDTH = 40  # characters of its longest bar


def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{WHAT_A_MODEL_IS}.")],
    *,
    text: Annotated[
        Path | None, unpanelled("--text", "FILE", f"A UTF-8 text like those to serve. Default: {MANUAL}.")
    ] = None,
    out: Annotated[
        Path | None, unpanelled("--out", "FILE", "The file to write; beside the weights by default.")
    ] = None,
    tokens: Annotated[int, unpanelled("--tokens", "N", "How many tokens of the text are used at most.")] = TOKENS,
    compute: ComputeOptions,
    as_json: AsJson = False,
) -> None:
    """Measure how much of the entries each head of a model needs, for --kv-heads profile.

    The model repeats a text in parts of 2,048 tokens, and a head's score is the attention that it pays to the original.
    It takes about as long as two prefills. An interrupted run goes on when the command is run again.

        ringkv profile qwen2.5-coder-1.5b
        ringkv serve qwen2.5-coder-1.5b --kv-heads profile
    """
    from ringkv.models.config import load_config
    from ringkv.plan.complete import complete
    from ringkv.plan.head_profile import FILE, measure, measured, model_key, read
    from ringkv.residency.locate import locate

    check_options(compute)
    target = None if out is None else _writable(out.expanduser().absolute())
    if text is not None:
        read_file(str(text))
    with show_progress() as progress:
        folder = locate(model, progress)
        target = target or _writable(folder / FILE)
        config = load_config(folder)
        size = _size(config)
        parts, longest = read_windows(folder, text, tokens, size), min(config.context, 2 * size + BESIDE)
        options = replace(compute, slots=1, prompt_tokens=longest, kv_budget=BUDGET, kv_window=PASS, graphs="off")
        key = model_key(complete(folder, config, options))
        try:
            measure(target, key, parts, _scorer(folder, config, options, progress), progress)
        except KeyboardInterrupt:
            progress.stop()
            done = measured(target, key, parts)
            print_stderr(f"{done} of {len(parts)} parts are measured; run the command again to go on")
            raise
    shares = read(target).shares
    if as_json:
        print_json({"model": model, "file": target, "shares": shares})
    else:
        typer.echo(_histogram(shares))
        flag = "" if out is None else f" --kv-profile {target}"
        typer.echo(f"{target} is ready; use it with --kv-heads profile{flag}")


def _writable(file: Path) -> Path:
    """Return the file. Raises InvalidRequest if its folder cannot be written."""
    if why := unwritable(file.parent):
        raise InvalidRequest(f"{why}; or give another --out")
    return file


def _size(config: "ModelConfig") -> int:
    """Return how many tokens a part has. Raises InvalidRequest if the model's context has no room to repeat one."""
    size = min(WINDOW, (config.context - BESIDE) // 2)
    if size < SHORTEST:
        least = BESIDE + 2 * SHORTEST
        raise InvalidRequest(
            f"the model's context is {config.context} tokens, and {least} are needed to repeat a text; serve it with "
            "--kv-heads global, which needs no profile"
        )
    return size


def _scorer(
    folder: Path, config: "ModelConfig", options: Options, progress: Progress
) -> Callable[[Sequence[int]], HeadShares]:
    """Return a function that scores the heads by a part of the text, in an engine that is built for the first one.

    It raises InvalidRequest if the model's heads cannot divide a slot.
    """

    @cache
    def engine() -> "LocalEngine":
        from ringkv.engine.device_memory import free_bytes
        from ringkv.plan.memory import available_bytes
        from ringkv.plan.resolve import resolve
        from ringkv.text.repeat_words import repeat_words
        from ringkv.weights.read_ahead import read_ahead

        refuse(of_model(config) | of_slots(SlotFormat(reading="ragged")))
        resolved = resolve(folder, config, options, available_bytes(), free_bytes(options.device))
        read_ahead(folder)
        progress(0, 0, "loading torch")
        with uninterrupted():
            from ringkv.engine.build import build
        return build(resolved, progress, partial(repeat_words, folder))

    def score(part: Sequence[int]) -> HeadShares:
        from ringkv.engine.head_scores import head_scores

        return head_scores(engine(), part)

    return score


def _histogram(shares: HeadShares) -> str:
    """Return how many heads have how much of the average share, in lines of text."""
    flat = [share for layer in shares for share in layer]
    average = sum(flat) / len(flat)
    edges = [*BINS, float("inf")]
    counts = [sum(low * average <= share < high * average for share in flat) for low, high in pairwise(edges)]
    lines = ["share, in averages   heads"]
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        span = f"{low:g} to {high:g}" if high < edges[-1] else f"{low:g} or more"
        lines.append(f"{span:<20} {count:>5} {'█' * (WIDTH * count // max(counts))}".rstrip())
    return "\n".join(lines)
