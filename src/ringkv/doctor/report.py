"""Report of `ringkv doctor`: the machine, and the defaults that ringkv chooses on it. Loads torch if installed."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from ringkv.doctor.choices import Choice, Device, TorchFacts, choices, torch_facts
from ringkv.machine import processor
from ringkv.machine.compiler import Compiler, find_compiler
from ringkv.machine.folders import cache_dir
from ringkv.plan.complete import default_threads
from ringkv.plan.memory import available_bytes, limit_bytes

PACKAGES = ("torch", "numpy", "safetensors", "gguf", "tokenizers", "fastapi", "huggingface_hub", "transformers")
INSTRUCTIONS = (
    *("avx2", "fma", "avx_vnni", "avx512f", "avx512_bf16", "avx512_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16"),
)


@dataclass(frozen=True)
class Toolchain(Compiler):
    version: str  # first line of --version


@dataclass(frozen=True)
class Package:
    name: str
    version: str | None  # None if it is not installed


@dataclass(frozen=True)
class Cpu:
    name: str
    cpus: int  # of the machine
    usable: int  # CPUs that this process may use
    torch_threads: int | None
    instructions: tuple[str, ...]  # those of `INSTRUCTIONS` that it has


@dataclass(frozen=True)
class Memory:
    total: int
    available: int
    limit: int | None  # the container's


@dataclass(frozen=True)
class Folder:
    name: str
    bytes: int


@dataclass(frozen=True)
class Cache:
    path: str
    set_by: str  # the variable that chose the path, or "default"
    folders: tuple[Folder, ...]
    disk_free: int


@dataclass(frozen=True)
class Doctor:
    """The report; `dataclasses.asdict` makes it ready for JSON."""

    ringkv: str
    python: str
    system: str
    packages: tuple[Package, ...]
    cpu: Cpu
    memory: Memory
    compiler: Toolchain | None
    devices: tuple[Device, ...]
    cache: Cache
    choices: tuple[Choice, ...]

    @property
    def problems(self) -> tuple[Choice, ...]:
        """Choices made because something is missing."""
        return tuple(choice for choice in self.choices if choice.remedy)


def report() -> Doctor:
    facts = torch_facts()
    cpu = _cpu(facts)
    memory = Memory(int(psutil.virtual_memory().total), available_bytes(), limit_bytes())
    devices = (Device("cpu", cpu.name, memory.total, memory.available), *(facts.devices if facts else ()))
    return Doctor(
        ringkv=_version("ringkv") or "not installed",
        python=platform.python_version(),
        system=platform.platform(),
        packages=tuple(Package(name, _version(name)) for name in PACKAGES),
        cpu=cpu,
        memory=memory,
        compiler=_toolchain(),
        devices=devices,
        cache=_cache(cache_dir()),
        choices=choices(facts, cpu.instructions, cpu.usable),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(facts: TorchFacts | None) -> Cpu:
    flags = processor.instructions()
    return Cpu(
        name=processor.name(),
        cpus=os.cpu_count() or 1,
        usable=default_threads(),
        torch_threads=facts.threads if facts else None,
        instructions=tuple(name for name in INSTRUCTIONS if name in flags),
    )


def _cache(path: Path) -> Cache:
    set_by = next((name for name in ("RINGKV_CACHE", "XDG_CACHE_HOME") if os.environ.get(name)), "default")
    entries = sorted(path.iterdir()) if path.is_dir() else []
    folders = tuple(Folder(entry.name, size_of(entry)) for entry in entries)
    nearest = next(folder for folder in (path, *path.parents) if folder.is_dir())
    return Cache(str(path), set_by, folders, psutil.disk_usage(str(nearest)).free)


def size_of(entry: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; those that vanish meanwhile have none."""
    size = 0
    with suppress(OSError):
        for file in entry.rglob("*") if entry.is_dir() else [entry]:
            with suppress(OSError):
                size += file.lstat().st_size if file.is_file() else 0
    return size


def _toolchain() -> Toolchain | None:
    if (compiler := find_compiler()) is None:
        return None
    command, printed = [compiler.path, "--version"], "does not run"
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    return Toolchain(compiler.path, compiler.python_headers, printed.partition("\n")[0])
