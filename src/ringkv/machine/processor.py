"""The processor, as Linux describes it."""

import ctypes
import platform
from collections.abc import Collection, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
DOTS_OF_BYTES = frozenset(("avx512_vnni", "avx_vnni"))  # processors with amx_int8 have these
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux constants for x86-64


@cache
def cpuinfo(path: Path = CPUINFO) -> Mapping[str, str]:
    """Return the first processor's fields: "vendor_id", "model name", "flags". Empty if the system has no such file."""
    try:
        with path.open(encoding="utf-8") as file:  # read lazily: there may be hundreds of processors
            pairs = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def name() -> str:
    """Return the model name."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def instructions() -> frozenset[str]:
    """Return the instruction set extensions, by Linux's names: "avx2", "amx_bf16", "asimd"."""
    fields = cpuinfo()
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


def multiplies_int8(instructions: Collection[str]) -> bool:
    """Whether a processor with these instructions has dot products of bytes, and so multiplies int8 fastest."""
    return not DOTS_OF_BYTES.isdisjoint(instructions)


def identity() -> str:
    """Return the name and instructions as a key for compiled code, which may not run on another processor."""
    return "\n".join((name(), *sorted(instructions())))


@cache
def refuses_amx() -> bool:
    """Whether the processor has AMX but Linux refuses the tile registers. This requests them; a sandbox may refuse."""
    if "amx_tile" not in instructions():
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA))
