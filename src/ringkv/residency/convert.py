"""Convert a GGUF to a directory in Hugging Face layout, once; it is cached under a key of its source.

converted/<name>-<key>.partial/  config.json, model.safetensors, int4.groups, int8.groups, ...; renamed when complete

The files are sealed: if one changes on disk, the GGUF is converted again.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ringkv.base.errors import BadCache, BadWeights
from ringkv.base.progress import Progress, silent
from ringkv.machine.folders import cache_dir, remove
from ringkv.machine.seal import changed, seal, stamp
from ringkv.models.config import load_config
from ringkv.residency.lock import locked, need_space
from ringkv.weights.gguf.split import part_paths

if TYPE_CHECKING:
    from ringkv.weights.gguf.file import GGUF

FORMAT = 5  # raise it if conversion writes something else, so that old copies are not used

log = logging.getLogger(__name__)


def converted_path(name: str, source: str) -> Path:
    """Return the directory of a conversion. `source` is a string that differs for different contents."""
    key = hashlib.sha256(f"{FORMAT} {source}".encode()).hexdigest()[:12]
    return cache_dir() / "converted" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{key}"


def file_key(path: Path) -> str:
    """Return a key of a file's contents without reading them: path, size and modification time, of all its parts."""
    parts = [part for part in part_paths(path) if part.is_file()] or [path]
    states = (part.stat() for part in parts)
    return " ".join((str(path.resolve()), *(f"{state.st_size} {state.st_mtime_ns}" for state in states)))


def is_converted(target: Path, progress: Progress = silent) -> bool:
    """Return whether the conversion exists as it was written. Reads its files only if they were touched since."""
    if not target.is_dir():
        return False
    if fault := changed(target, lambda: progress(0, 0, f"verifying {target.name}")):
        log.warning("%s: %s; it is converted again", target, fault)
    return fault is None


def convert(
    gguf_path: Path, target: Path, progress: Progress = silent, sampling: Mapping[str, float] = MappingProxyType({})
) -> Path:
    """Convert into `target` unless `is_converted`, and return it. A failure or an interruption leaves no new files.

    sampling: is added to generation_config.json.

    Raises BadWeights (truncated or corrupt file), UnsupportedModel, PullFailed (too little disk space), BadCache.
    """
    if is_converted(target, progress):
        return target
    with locked(target, progress):
        if not is_converted(target, progress):
            _convert(gguf_path, target, progress, sampling)
    return target


def _convert(gguf_path: Path, target: Path, progress: Progress, sampling: Mapping[str, float]) -> None:
    # Imported here because they load numpy and tokenizers, which is not needed if the conversion exists.
    from ringkv.text.gguf_tokenizer import write_tokenizer
    from ringkv.weights.gguf import convert as weights
    from ringkv.weights.gguf.file import GGUF

    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        progress(0, 0, f"reading {gguf_path.name}")
        gguf = GGUF(gguf_path)
        weights.write_config(gguf, partial)
        _check(gguf, partial)
        size = weights.weight_bytes(gguf) + weights.group_bytes(gguf)
        need_space(partial, size, f"the converted {gguf_path.name}")
        weights.write_weights(gguf, partial, progress)
        weights.write_groups(gguf, partial)
        progress(0, 0, "writing the tokenizer")
        write_tokenizer(gguf_path, partial, sampling)
        progress(0, 0, "computing checksums")
        seal(partial)
        stamp(partial)
        if fault := remove(target):  # its files were not as they were sealed
            raise BadCache(fault)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(gguf: "GGUF", converted: Path) -> None:
    """Refuse, before any weight is converted, models that are not supported and tensors that do not fit config.json."""
    from ringkv.weights.gguf.convert import shapes
    from ringkv.weights.shapes import check_shapes

    try:
        check_shapes(shapes(gguf), load_config(converted).tensors)
    except BadWeights as error:
        raise BadWeights(f"{gguf.path} cannot be converted: {error}") from None
