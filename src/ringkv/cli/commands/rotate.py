"""ringkv rotate: a rotated and quantised copy of a model."""

from pathlib import Path
from typing import Annotated

import typer

from ringkv.base.errors import InvalidRequest
from ringkv.cli.document import read_windows
from ringkv.cli.options import WHAT_A_MODEL_IS, AsJson, unpanelled
from ringkv.cli.output import print_json
from ringkv.cli.prompts import read_file
from ringkv.llm.show_progress import show_progress
from ringkv.plan.units import show_bytes

WINDOW = 1024  # tokens of a calibration window


def rotate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{WHAT_A_MODEL_IS}.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; it must not exist, or be empty.")],
    *,
    weights: Annotated[
        str, unpanelled("--weights", "DTYPE", "int4, int8, or bf16, which rotates without rounding.")
    ] = "int4",
    group: Annotated[
        str | None, unpanelled("--group", "32|row", "What shares a scale with int4: 32 weights, or a row. Default: 32.")
    ] = None,
    calibration: Annotated[
        Path | None, unpanelled("--calibration", "FILE", "A UTF-8 text; rounds by GPTQ instead of to nearest.")
    ] = None,
    calibration_tokens: Annotated[
        int, unpanelled("--calibration-tokens", "N", "How many tokens of the text GPTQ uses at most.")
    ] = 32 * WINDOW,
    seed: Annotated[int, unpanelled("--seed", "N", "Of the rotation's random signs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a model that loses less in few bits (QuaRot).

    Weights and activations are rotated by Hadamard matrices, so that they have no outliers; the model computes the
    same. Serve the copy with the same --weights. An interrupted run goes on when the command is run again.

        ringkv rotate smollm2 smollm2-rotated
        ringkv rotate qwen2.5-coder-1.5b coder-rotated --calibration code.txt
        ringkv serve coder-rotated --weights int4
    """
    from ringkv.models.config import load_config
    from ringkv.residency.locate import locate
    from ringkv.residency.lock import locked
    from ringkv.rotate.choice import RotationChoice
    from ringkv.rotate.run import refuse_existing
    from ringkv.rotate.run import rotate as write

    choice = RotationChoice(weights, group, seed)
    if calibration and weights == "bf16":
        raise InvalidRequest("calibration is for rounding, and weights bf16 are not rounded; leave it out")
    if calibration:
        read_file(str(calibration))
    out = out.expanduser().absolute()
    refuse_existing(out)
    with show_progress() as progress:
        source = locate(model, progress)
        longest = min(WINDOW, load_config(source).context)
        windows = read_windows(source, calibration, calibration_tokens, longest) if calibration else []
        with locked(out, progress):
            write(source, out, choice, windows, progress)
    out.with_name(f".{out.name}.lock").unlink(missing_ok=True)
    size = sum(file.stat().st_size for file in out.iterdir())
    if as_json:
        print_json({"model": model, "directory": out, "bytes": size})
    else:
        typer.echo(f"{out} is ready ({show_bytes(size)}); run it with --model {out} --weights {weights}")
