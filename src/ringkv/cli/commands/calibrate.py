"""ringkv calibrate: statistics of a model's queries, which --kv-policy triattention needs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.options import WHAT_A_MODEL_IS, AsJson, ComputeOptions
from ringkv.cli.output import print_json, print_stderr
from ringkv.cli.windows import WINDOW, Text, Tokens, read_windows
from ringkv.llm.show_progress import show_progress
from ringkv.machine.interrupts import uninterrupted

if TYPE_CHECKING:
    from ringkv.base.progress import Progress

STEP = 512  # tokens of a pass, whose queries are kept
TOKENS = 4 * WINDOW
LEAST = 256

Windows = Sequence[Sequence[int]]


def calibrate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{WHAT_A_MODEL_IS}.")],
    *,
    text: Text = None,
    tokens: Tokens = TOKENS,
    compute: ComputeOptions,
    as_json: AsJson = False,
) -> None:
    """Measure what a model's queries are like, which `--kv-policy triattention` needs; once for each model.

    The text is prefilled in windows of 2,048 tokens. The result is a small file in ringkv's cache folder, which engines
    find by the model's files. An interrupted run goes on when the command is run again; another text replaces it.

        ringkv calibrate smollm2
        ringkv calibrate qwen2.5-coder-1.5b --text solutions.txt
        ringkv serve smollm2 --kv-policy triattention --kv-review 128
    """
    from ringkv.machine.paths import cache_dir
    from ringkv.models.calibratable import refuse_uncalibratable
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate
    from ringkv.residency.lock import locked

    if tokens < LEAST:
        raise InvalidRequest(f"tokens is {tokens}; it must be at least {LEAST}", "tokens")
    with show_progress() as progress:
        folder = locate(model, progress)
        config = load_config(folder)
        refuse_uncalibratable(config)
        windows = read_windows(folder, text, tokens, min(WINDOW, config.context), LEAST)
        progress(0, 0, "loading torch")
        with uninterrupted():
            from ringkv.weights.query_statistics import path_of, read
        path, source = path_of(folder, cache_dir()), hashlib.sha256(repr(windows).encode()).hexdigest()
        with locked(path, progress):
            found = read(path)
            if found is None or found.source != source:
                _run(folder, windows, path, source, compute, progress)
    count = sum(map(len, windows))
    if as_json:
        print_json({"model": model, "file": path, "tokens": count})
    else:
        typer.echo(f"{model} is calibrated on {count:,} tokens; serve it with --kv-policy triattention")


def _run(
    folder: Path, windows: Windows, path: Path, source: str, compute: ComputeOptions, progress: "Progress"
) -> None:
    from ringkv.engine.build import build
    from ringkv.engine.calibrate import calibrate as write
    from ringkv.engine.device_memory import free_bytes
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve

    size = len(windows[0])
    chosen = {**vars(compute), "kv_window": STEP, "chunk": STEP, "prompt_tokens": size, "graphs": "off"}
    memory = available_bytes(), free_bytes(compute.device)
    engine = build(resolve(folder, load_config(folder), Options(**chosen), *memory), progress)
    try:
        write(engine.lanes, windows, path, source, progress)
    except KeyboardInterrupt:
        print_stderr("whole windows are saved; the same command goes on")
        raise
