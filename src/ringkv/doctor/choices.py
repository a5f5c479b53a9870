"""What an engine made with no options will use on this machine, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringkv.doctor.torch_facts import TorchFacts
from ringkv.machine.compiler import find_compiler, missing_for_graphs


@dataclass(frozen=True)
class Choice:
    """`remedy` says what to do about a choice that something missing forced on us; None when nothing is missing."""

    what: str
    value: str
    why: str
    remedy: str | None = None


def choices(facts: TorchFacts | None, instructions: Sequence[str], usable: int) -> tuple[Choice, ...]:
    if facts is None:
        return (Choice("engine", "none", "torch is not installed or does not load", "pip install ringkv again"),)
    return (_device(facts), _graphs(), _kernels(), _dtype(instructions), _threads(usable))


def _device(facts: TorchFacts) -> Choice:
    if facts.devices:
        names = ", ".join(device.name for device in facts.devices)
        return Choice(
            "device", "cpu", f"an accelerator is used when asked for: --device {facts.devices[0].name} ({names})"
        )
    return Choice("device", "cpu", "torch sees no accelerator")


def _graphs() -> Choice:
    missing = missing_for_graphs()
    if missing is None:
        compiler = find_compiler()
        return Choice("graphs", "compiled", f"{compiler.path if compiler else 'a compiler'} and Python.h are there")
    return Choice("graphs", "off", "the same functions run eagerly, more slowly", missing)


def _kernels() -> Choice:
    """Their remedy is that of the graphs: the same compiler."""
    if compiler := find_compiler():
        return Choice("kernels", "C++", f"{compiler.path} builds them for this CPU, once")
    return Choice("kernels", "torch", "without a compiler torch's own operations answer, more slowly")


def _dtype(instructions: Sequence[str]) -> Choice:
    native = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in instructions]
    if native:
        return Choice("dtype", "bfloat16", f"half of float32's bytes, and the CPU multiplies it natively ({native[0]})")
    if "avx2" in instructions:
        why = "half of float32's bytes; the CPU has no bf16 instructions, so numbers are widened as they are multiplied"
        return Choice("dtype", "bfloat16", why)
    why = "half of float32's bytes; the CPU has no bf16 instructions, so each product converts: float32 may be faster"
    return Choice("dtype", "bfloat16", why)


def _threads(usable: int) -> Choice:
    return Choice("threads", str(usable), "one for each CPU that this process may run on")
