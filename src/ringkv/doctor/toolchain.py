"""The C++ compiler that builds graphs, and its version."""

import subprocess
from dataclasses import dataclass

from ringkv.machine.compiler import Compiler


@dataclass(frozen=True)
class Toolchain:
    path: str
    version: str  # first line of --version
    python_headers: bool


def toolchain(compiler: Compiler | None) -> Toolchain | None:
    """Return the compiler's path and version; None if there is no compiler."""
    if compiler is None:
        return None
    return Toolchain(compiler.path, _first_line(compiler.path), compiler.python_headers)


def _first_line(path: str) -> str:
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "does not run"
    return printed.partition("\n")[0]
