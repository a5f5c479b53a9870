"""run: rotates a checkpoint part by part, and assembles the parts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress, silent
from ringkv.models.decoder import Decoder
from ringkv.rotate.assemble import copy_files, write_config, write_shards
from ringkv.rotate.calibration import Calibration
from ringkv.rotate.choice import RotationChoice
from ringkv.rotate.job import Job
from ringkv.rotate.parts import Parts
from ringkv.weights.files import stamps

FORMAT = 2  # raise it if parts are computed otherwise, so that an interrupted run begins again

Windows = Sequence[Sequence[int]]


@torch.no_grad()
def rotate(source: Path, out: Path, choice: RotationChoice, windows: Windows = (), tell: Progress = silent) -> None:
    """Write the directory `out`, in Hugging Face layout. windows: tokens to calibrate with, all of one length.

    A call after an interrupted one resumes after the last layer that was written. Raises UnsupportedModel or BadWeights
    for a model that cannot be rotated, and InvalidRequest if `out` has content.
    """
    refuse_existing(out)
    job = Job.of(source, choice)
    parts = Parts(out.with_name(f"{out.name}.partial"), _identity(source, choice, windows))
    _compute(job, parts, windows, tell)
    tell(0, 0, "writing shards")
    _finish(job, parts, out)


def refuse_existing(out: Path) -> None:
    """Raise InvalidRequest unless a directory can be written there."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidRequest(f"{out} exists and is not empty; give another directory, or delete it")


def _identity(source: Path, choice: RotationChoice, windows: Windows) -> dict[str, Any]:
    """Return what the parts depend on."""
    return {
        "format": FORMAT,
        "source": str(source.resolve()),
        "files": [list(stamp) for stamp in stamps(source)],
        "calibration": hashlib.sha256(json.dumps([list(window) for window in windows]).encode()).hexdigest(),
        **asdict(choice),
    }


def _compute(job: Job, parts: Parts, windows: Windows, tell: Progress) -> None:
    """Write the parts that are missing."""
    total, what = job.config.num_layers, "rotating layers"
    if not parts.done():
        tell(0, 0, "rotating the embedding")
        parts.write(0, job.tables())
    done, calibration = parts.done() - 1, None
    if windows and job.grid:
        what = "rotating layers and rounding them by GPTQ"
        done, calibration = _calibration(job, parts, windows)
    for index in range(done, total):
        tell(index, total, what)
        parts.write(index + 1, job.layer(index, calibration))
        if calibration:
            parts.write_hidden(index + 1, calibration.hidden)
    tell(total, total, what)


def _calibration(job: Job, parts: Parts, windows: Windows) -> tuple[int, Calibration]:
    """Return how many layers are done, and the hidden states after them."""
    decoder = Decoder(job.rotated, torch.float32, torch.device("cpu"))
    if hidden := parts.read_hidden():
        return hidden[0], Calibration(decoder, hidden[1])
    (table,) = job.rotated.shared_weights()["embed"].parts
    return 0, Calibration.of(decoder, parts.tensor(0, table.name), windows)


def _finish(job: Job, parts: Parts, out: Path) -> None:
    """Make a checkpoint of all parts, and rename it to `out`."""
    config, checkpoint = job.config, parts.folder / "whole"
    checkpoint.mkdir(exist_ok=True)
    copy_files(job.source, checkpoint)
    beside = {config.head_name: config.embedding_name} if config.tied_embeddings else {}
    write_shards(job.source, [parts.path(part) for part in range(config.num_layers + 1)], checkpoint, beside)
    write_config(job.source, checkpoint, job.settings)
    if out.exists():
        out.rmdir()
    checkpoint.rename(out)
    parts.remove()
