"""Defaults that an engine uses on this machine, and why: what torch finds, the compiler and the processor."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringkv.machine.compiler import find_compiler, missing_for_graphs, missing_for_kernels, other_platform
from ringkv.machine.folders import cache_dir
from ringkv.machine.processor import multiplies_int8


@dataclass(frozen=True)
class Device:
    name: str  # "cpu", "cuda:0"
    model: str
    memory: int  # bytes
    free: int  # bytes


@dataclass(frozen=True)
class TorchFacts:
    threads: int
    devices: tuple[Device, ...]  # accelerators only


def torch_facts() -> TorchFacts | None:
    """Return None if torch is not installed or cannot be loaded."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    cuda = torch.cuda
    devices = (
        Device(f"cuda:{index}", cuda.get_device_name(index), *reversed(cuda.mem_get_info(index)))
        for index in range(cuda.device_count() if cuda.is_available() else 0)
    )
    return TorchFacts(torch.get_num_threads(), tuple(devices))


@dataclass(frozen=True)
class Choice:
    """One default. remedy: what to install if something is missing; None if nothing is."""

    what: str
    value: str
    why: str
    remedy: str | None = None


def choices(facts: TorchFacts | None, instructions: Sequence[str], usable: int) -> tuple[Choice, ...]:
    if facts is None:
        return (Choice("engine", "none", "torch is not installed or cannot be loaded", "pip install ringkv again"),)
    names = ", ".join(device.name for device in facts.devices)
    device = "torch found no accelerator"
    if facts.devices:
        device = f"an accelerator is used only if requested: --device {facts.devices[0].name} ({names})"
    int8 = multiplies_int8(instructions)
    products = "dot products of bytes, twice as fast as those of bfloat16" if int8 else "no dot products of bytes"
    return (
        Choice("device", "cpu", device),
        _graphs(),
        _kernels(),
        Choice("dtype", "bfloat16", f"half the bytes of float32; {_bfloat16(instructions)}"),
        Choice("activations", "int8" if int8 else "16-bit", f"with int8 and int4 weights: the CPU has {products}"),
        Choice("threads", str(usable), "one per CPU that this process may use"),
    )


def _graphs() -> Choice:
    missing = missing_for_graphs()
    if missing and other_platform():
        return Choice("graphs", "off", missing)
    if missing is None:
        compiler = find_compiler()
        return Choice("graphs", "compiled", f"found {compiler.path if compiler else 'a compiler'} and Python.h")
    return Choice("graphs", "off", "functions run eagerly, which is slower", missing)


def _kernels() -> Choice:
    """Kernels that are built need the platform and compiler of graphs, so `_graphs` alone reports the remedy."""
    from ringkv.kernels import native, shipped  # import torch

    if library := shipped.fitting():
        return Choice("kernels", "C++", f"the package has them for this CPU and torch: {library}")
    compiler, missing = find_compiler(), missing_for_kernels()
    if missing or compiler is None:
        return Choice("kernels", "torch", str(missing))
    cache = cache_dir() / "kernels"
    if failed := native.failure(compiler.path, cache):  # of an earlier start
        return Choice("kernels", "torch", "the C++ kernels could not be built: torch's operators are slower", failed)
    folder = native.folder(compiler.path, cache)
    when = "built them" if folder.is_dir() else "builds them at the first start"
    return Choice("kernels", "C++", f"{compiler.path} {when} for this CPU: {folder / native.LIBRARY}")


def _bfloat16(instructions: Sequence[str]) -> str:
    if native := [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in instructions]:
        return f"the CPU multiplies it natively ({native[0]})"
    if "avx2" in instructions:
        return "without bf16 instructions elements are widened during multiplication"
    return "without bf16 instructions every multiplication converts: float32 may be faster"
