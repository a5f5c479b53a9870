"""weights: one model in the format of each peer, converted once; all from the same GGUF.

ringkv, vllm, transformers   ringkv's converted directory, bfloat16
llama.cpp                    the GGUF with its matrices at 16 bits; q8_0, q4_1 and q4_0 are made of that by llama.cpp
openvino                     exported from the directory by optimum-intel; low bits are its own compression
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.peers.engines import Bits, Engine, Format
from bench.peers.gguf import TYPES, rewrite
from bench.peers.install import NotInstalled, Say, peers_dir, python_of
from ringkv.residency.locate import locate
from ringkv.residency.pull import pull

REPOSITORY = Path(__file__).parents[2]
GROUP = "64"  # numbers that share a scale at 4 bits; SmolLM2's rows are no multiple of 128


def weights_of(engine: Engine, model: str, bits: Bits, say: Say = print, gguf: str = "f16") -> Path:
    """Where `engine` finds `model` (a catalogue name). `gguf`: llama.cpp's 16-bit type, f16 or bf16.

    Raises NotInstalled when a converter is missing or fails.
    """
    kind = gguf if (engine.format, bits) == ("gguf", 16) else engine.weights[bits]
    return MAKERS[engine.format](model, kind, say)


def _hf(model: str, kind: str, say: Say) -> Path:
    return locate(model)


def _gguf(model: str, kind: str, say: Say) -> Path:
    target = _folder(model) / f"{kind}.gguf"
    make = _sixteen_bits if kind in TYPES else _fewer_bits
    return _once(target, lambda partial: make(model, kind, partial, say), f"{model}: writing {target.name}", say)


def _sixteen_bits(model: str, kind: str, target: Path, say: Say) -> None:
    rewrite(pull(model), target, kind)


def _fewer_bits(model: str, kind: str, target: Path, say: Say) -> None:
    source = _gguf(model, "f16", say)
    _run([python_of("llama.cpp", say), "-m", "bench.peers.workers.quantise", source, target, kind], target, say)


def _openvino(model: str, kind: str, say: Say) -> Path:
    target = _folder(model) / f"openvino-{kind}"
    return _once(target, lambda partial: _export(model, kind, partial, say), f"{model}: exporting {target.name}", say)


def _export(model: str, kind: str, target: Path, say: Say) -> None:
    command = python_of("openvino-convert", say).with_name("optimum-cli")
    low = ["--group-size", GROUP, "--ratio", "1.0"] if kind == "int4" else []
    task = ["--task", "text-generation-with-past", "--weight-format", "fp16" if kind == "f16" else kind]
    _run([command, "export", "openvino", "--model", locate(model), *task, *low, target], target, say)


MAKERS: Mapping[Format, Callable[[str, str, Say], Path]] = {"hf": _hf, "gguf": _gguf, "openvino": _openvino}


def _folder(model: str) -> Path:
    """Keyed by the converted directory's name, which holds a hash of the weights."""
    folder = peers_dir() / "weights" / locate(model).name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _once(target: Path, make: Callable[[Path], None], what: str, say: Say) -> Path:
    """`target`, made under another name first, so that what is there is whole."""
    if target.exists():
        return target
    say(f"{what} (once)")
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.unlink(missing_ok=True)
    make(partial)
    return partial.rename(target)


def _run(command: list[str | Path], target: Path, say: Say) -> None:
    log = target.with_suffix(".log")
    with open(log, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPOSITORY, check=False)
    if done.returncode:
        say(f"converting failed; {log} has what it said")
        raise NotInstalled(f"weights were not converted: {Path(command[0]).name} failed")
