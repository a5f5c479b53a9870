"""run: rotates a checkpoint part by part, and assembles the parts in the shards of the source.

The result is in Hugging Face layout. Shards are streamed, a tensor at a time.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ringkv.base.errors import InvalidRequest
from ringkv.base.json_file import read_object
from ringkv.base.progress import Progress, silent
from ringkv.models.decoder import Decoder
from ringkv.rotate.calibration import Calibration
from ringkv.rotate.choice import RotationChoice
from ringkv.rotate.job import Job
from ringkv.rotate.parts import Parts
from ringkv.rotate.tensors import origin
from ringkv.weights.files import INDEX, SINGLE, stamps
from ringkv.weights.open_files import open_file
from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec

FORMAT = 2  # raise it if parts are computed otherwise, so that an interrupted run begins again

Windows = Sequence[Sequence[int]]
COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "NOTICE*")
NOT_COPIED = ("config.json", INDEX, "seal.json", "stamp.json")  # describe the source; the copy has its own, or none


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


def copy_files(source: Path, into: Path) -> None:
    """Copy the tokenizer, the generation settings and the licence."""
    for path in {path for pattern in COPIED for path in source.glob(pattern)}:
        if path.is_file() and path.name not in NOT_COPIED:
            shutil.copyfile(path, into / path.name)


def write_config(source: Path, into: Path, changes: Mapping[str, Any]) -> None:
    config = read_object(source / "config.json") | dict(changes)
    (into / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_shards(source: Path, parts: list[Path], into: Path, beside: Mapping[str, str]) -> None:
    """Write each tensor to the shard that has it in the source.

    beside: for tensors that the source lacks, one whose shard they go to.
    """
    source_index = source / INDEX
    shard_of: Mapping[str, str] = read_object(source_index)["weight_map"] if source_index.is_file() else {}
    places: dict[str, Any] = {}  # the open file of each tensor
    for file in map(open_file, parts):
        places |= dict.fromkeys(file.keys(), file)
    shards: dict[str, list[str]] = {}
    for name in places:
        tensor = origin(name)
        shards.setdefault(shard_of.get(beside.get(tensor, tensor), SINGLE), []).append(name)
    for shard, names in shards.items():
        _write(into / shard, names, places)
    if shard_of:
        size = sum((into / shard).stat().st_size for shard in shards)
        weight_map = {name: shard for shard, names in shards.items() for name in names}
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (into / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, names: list[str], places: Mapping[str, Any]) -> None:
    path.unlink(missing_ok=True)  # of an interrupted run
    slices = {name: places[name].get_slice(name) for name in names}
    specs = {name: TensorSpec(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    with SafetensorsWriter(path, specs) as writer:
        for name in names:
            writer.write(places[name].get_tensor(name).view(torch.uint8).numpy())
