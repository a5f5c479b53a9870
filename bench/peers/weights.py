"""weights: one model in each peer's format, converted once from the same GGUF.

ringkv, vllm   ringkv's converted directory, bfloat16
llama.cpp      the GGUF with 16-bit matrices; llama.cpp makes q8_0, q4_1 and q4_0 from it
openvino       exported from the directory by optimum-intel, which also makes the low-bit weights
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from bench.data import REPOSITORY
from bench.peers.engines import Bits, Format, PeerEngine
from bench.peers.install import NotInstalled, Report, peers_dir, python_of
from ringkv.residency.locate import locate
from ringkv.residency.pull import pull

GROUP = "64"  # elements that share a scale at 4 bits; SmolLM2's rows are not a multiple of 128
TYPES = {
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}
NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")


def weights_of(engine: PeerEngine, model: str, bits: Bits, report: Report = print, gguf: str = "f16") -> Path:
    """Return the path of `model` (a catalogue name) for `engine`. gguf: llama.cpp's 16-bit dtype, f16 or bf16.

    Raises NotInstalled if a converter is missing or fails.
    """
    dtype = gguf if (engine.format, bits) == ("gguf", 16) else engine.weights[bits]
    return MAKERS[engine.format](model, dtype, report)


def _gguf(model: str, dtype: str, report: Report) -> Path:
    def make(target: Path) -> None:
        if dtype in TYPES:
            return rewrite(pull(model), target, dtype)
        program = [python_of("llama.cpp", report), "-m", "bench.peers.workers.quantise"]
        _run([*program, _gguf(model, "f16", report), target, dtype], target, report)

    return _once(f"{dtype}.gguf", model, make, report)


def _openvino(model: str, dtype: str, report: Report) -> Path:
    def make(target: Path) -> None:
        command = python_of("openvino-convert", report).with_name("optimum-cli")
        low = ["--group-size", GROUP, "--ratio", "1.0"] if dtype == "int4" else []
        task = ["--task", "text-generation-with-past", "--weight-format", "fp16" if dtype == "f16" else dtype]
        _run([command, "export", "openvino", "--model", locate(model), *task, *low, target], target, report)

    return _once(f"openvino-{dtype}", model, make, report)


MAKERS: Mapping[Format, Callable[[str, str, Report], Path]] = {
    "hf": lambda model, dtype, report: locate(model),
    "gguf": _gguf,
    "openvino": _openvino,
}


def _once(name: str, model: str, make: Callable[[Path], None], report: Report) -> Path:
    """Return the path of this name in the folder of converted weights, whose name has a hash of the original weights.

    A missing one is made under another name and renamed, so that it is never incomplete.
    """
    target = peers_dir() / "weights" / locate(model).name / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    report(f"{model}: making {name} (once)")
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


def rewrite(source: Path, target: Path, dtype: str) -> None:
    """Write a GGUF with its matrices in one of `TYPES`, one tensor in memory at a time.

    Metadata and tokenizer are copied. Vectors (norms, biases) stay in 32 bits, as in llama.cpp's own converter.
    """
    reader = GGUFReader(source)
    matrix, file_type = TYPES[dtype]
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name not in NOT_COPIED:
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(file_type)
    types = [matrix if len(tensor.shape) > 1 else GGMLQuantizationType.F32 for tensor in reader.tensors]
    for tensor, to in zip(reader.tensors, types, strict=True):
        shape = [int(size) for size in reversed(tensor.shape)]
        width = 4 if to == GGMLQuantizationType.F32 else 2
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), int(np.prod(shape)) * width, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, to in zip(reader.tensors, types, strict=True):
        writer.write_tensor_data(quantize(dequantize(tensor.data, tensor.tensor_type), to))
    writer.close()
