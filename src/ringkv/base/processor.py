"""The processor, as Linux describes it."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def described(path: Path = CPUINFO) -> dict[str, str]:
    """The first processor's fields: "vendor_id", "model name", "flags"; empty where the system has no such file."""
    try:
        first = path.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def name() -> str:
    """What its maker calls it."""
    return described().get("model name") or platform.processor() or platform.machine()


def instructions() -> frozenset[str]:
    """What it can do, in Linux's words: "avx2", "amx_bf16", "asimd"."""
    found = described()
    return frozenset(found.get("flags", found.get("Features", "")).split())


def identity() -> str:
    """Its name and instructions: what is compiled for this one may not run on the next."""
    return "\n".join((name(), *sorted(instructions())))
