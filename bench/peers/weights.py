"""weights: one model in each peer's format, converted once from the same GGUF.

ringkv, vllm   ringkv's converted directory, bfloat16
llama.cpp      the GGUF with 16-bit matrices; llama.cpp makes q8_0, q4_1 and q4_0 from it
openvino       exported from the directory by optimum-intel, which also makes the low-bit weights
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.data import REPOSITORY
from bench.peers.engines import Bits, Format, PeerEngine
from bench.peers.gguf import TYPES, rewrite
from bench.peers.install import NotInstalled, Report, peers_dir, python_of
from ringkv.residency.locate import locate
from ringkv.residency.pull import pull

GROUP = "64"  # elements that share a scale at 4 bits; SmolLM2's rows are not a multiple of 128


def weights_of(engine: PeerEngine, model: str, bits: Bits, report: Report = print, gguf: str = "f16") -> Path:
    """Return the path of `model` (a catalogue name) for `engine`. gguf: llama.cpp's 16-bit dtype, f16 or bf16.

    Raises NotInstalled if a converter is missing or fails.
    """
    kind = gguf if (engine.format, bits) == ("gguf", 16) else engine.weights[bits]
    return MAKERS[engine.format](model, kind, report)


def _hf(model: str, kind: str, report: Report) -> Path:
    return locate(model)


def _gguf(model: str, kind: str, report: Report) -> Path:
    target = _folder(model) / f"{kind}.gguf"
    make = _sixteen_bits if kind in TYPES else _fewer_bits
    return _once(target, lambda partial: make(model, kind, partial, report), f"{model}: writing {target.name}", report)


def _sixteen_bits(model: str, kind: str, target: Path, report: Report) -> None:
    rewrite(pull(model), target, kind)


def _fewer_bits(model: str, kind: str, target: Path, report: Report) -> None:
    source = _gguf(model, "f16", report)
    _run([python_of("llama.cpp", report), "-m", "bench.peers.workers.quantise", source, target, kind], target, report)


def _openvino(model: str, kind: str, report: Report) -> Path:
    target = _folder(model) / f"openvino-{kind}"
    return _once(
        target, lambda partial: _export(model, kind, partial, report), f"{model}: exporting {target.name}", report
    )


def _export(model: str, kind: str, target: Path, report: Report) -> None:
    command = python_of("openvino-convert", report).with_name("optimum-cli")
    low = ["--group-size", GROUP, "--ratio", "1.0"] if kind == "int4" else []
    task = ["--task", "text-generation-with-past", "--weight-format", "fp16" if kind == "f16" else kind]
    _run([command, "export", "openvino", "--model", locate(model), *task, *low, target], target, report)


MAKERS: Mapping[Format, Callable[[str, str, Report], Path]] = {"hf": _hf, "gguf": _gguf, "openvino": _openvino}


def _folder(model: str) -> Path:
    """Return the folder of converted weights. Its name contains a hash of the original weights."""
    folder = peers_dir() / "weights" / locate(model).name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _once(target: Path, make: Callable[[Path], None], what: str, report: Report) -> Path:
    """Return `target`; if missing, make it under another name and rename it, so that it is never incomplete."""
    if target.exists():
        return target
    report(f"{what} (once)")
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.unlink(missing_ok=True)
    make(partial)
    return partial.rename(target)


def _run(command: list[str | Path], target: Path, report: Report) -> None:
    log = target.with_suffix(".log")
    with open(log, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPOSITORY, check=False)
    if done.returncode:
        report(f"converting failed; see {log}")
        raise NotInstalled(f"weights were not converted: {Path(command[0]).name} failed")
