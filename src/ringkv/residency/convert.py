"""Convert a GGUF to a directory in Hugging Face layout, once; it is cached under a key of its source.

converted/<name>-<key>.partial/  config.json, model.safetensors, int4.groups, tokenizer.json, ...; renamed when complete
"""

import hashlib
import re
import shutil
from pathlib import Path

from ringkv.base.progress import Progress, silent
from ringkv.machine.paths import cache_dir
from ringkv.models.config import load_config
from ringkv.residency.disk import need_space
from ringkv.residency.lock import locked

FORMAT = 2  # raise it if conversion writes something else, so that old copies are not used


def converted_path(name: str, source: str) -> Path:
    """Return the directory of a conversion. `source` is a string that differs for different contents."""
    key = hashlib.sha256(f"{FORMAT} {source}".encode()).hexdigest()[:12]
    return cache_dir() / "converted" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{key}"


def file_key(path: Path) -> str:
    """Return a key of a file's contents without reading them: its path, size and modification time."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def convert(gguf_path: Path, target: Path, progress: Progress = silent) -> Path:
    """Convert into `target` unless it exists, and return it. A failure or an interruption leaves no files.

    Raises BadWeights (truncated or corrupt file), UnsupportedModel, PullFailed (too little disk space).
    """
    if target.is_dir():
        return target
    with locked(target, progress):
        if not target.is_dir():
            _convert(gguf_path, target, progress)
    return target


def _convert(gguf_path: Path, target: Path, progress: Progress) -> None:
    # Imported here because they load numpy and tokenizers, which is not needed if the conversion exists.
    from ringkv.text.gguf_tokenizer import write_tokenizer
    from ringkv.weights.gguf import GGUF
    from ringkv.weights.gguf_convert import group_bytes, weight_bytes, write_config, write_groups, write_weights

    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        progress(0, 0, f"reading {gguf_path.name}")
        gguf = GGUF(gguf_path)
        write_config(gguf, partial)
        load_config(partial)  # refuses unsupported models before the weights are converted
        need_space(partial, weight_bytes(gguf) + group_bytes(gguf), f"the converted {gguf_path.name}")
        write_weights(gguf, partial, progress)
        write_groups(gguf, partial)
        progress(0, 0, "writing the tokenizer")
        write_tokenizer(gguf_path, partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
