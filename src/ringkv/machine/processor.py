"""The processor, as Linux describes it."""

import ctypes
import platform
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux's numbers for x86-64


@cache
def cpuinfo(path: Path = CPUINFO) -> Mapping[str, str]:
    """The first processor's fields: "vendor_id", "model name", "flags"; empty where the system has no such file."""
    try:
        with path.open(encoding="utf-8") as file:  # Linux writes it as it is read, and there may be hundreds
            pairs = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def name() -> str:
    """What its maker calls it."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def instructions() -> frozenset[str]:
    """What it can do, in Linux's words: "avx2", "amx_bf16", "asimd"."""
    found = cpuinfo()
    return frozenset(found.get("flags", found.get("Features", "")).split())


def identity() -> str:
    """Its name and instructions: what is compiled for this one may not run on the next."""
    return "\n".join((name(), *sorted(instructions())))


@cache
def refuses_amx() -> bool:
    """Whether AMX is there but not its tile registers. Linux gives them on request, made here; a sandbox may refuse."""
    if "amx_tile" not in instructions():
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA))
