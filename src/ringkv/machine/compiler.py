"""The C++ compiler that static graphs and CPU kernels are built with, if this machine has one."""

import os
import platform
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

CANDIDATES = ("g++", "clang++")
NO_COMPILER = "no C++ compiler was found (install g++ or clang++, or set CXX)"


@dataclass(frozen=True)
class Compiler:
    path: str  # "/usr/bin/g++"
    python_headers: bool  # whether Python.h is in this interpreter's include directory


def find_compiler() -> Compiler | None:
    """Return `$CXX` if it names a program, else the first of `CANDIDATES` on the path."""
    for name in (os.environ.get("CXX"), *CANDIDATES):
        if name and (path := shutil.which(name)):
            return Compiler(path, (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file())
    return None


def missing_for_kernels() -> str | None:
    """Return why C++ kernels cannot be built here, with the remedy if there is one; None if they can."""
    if other := other_platform():
        return f"they are for Linux on x86-64 and this is {other}: torch's operators run instead"
    return None if find_compiler() else NO_COMPILER


def missing_for_graphs() -> str | None:
    """Return what is missing to build static graphs, with the remedy; None if nothing is."""
    if other := other_platform():
        return f"they are for Linux on x86-64 and this is {other}: functions run eagerly instead"
    compiler = find_compiler()
    if compiler is None:
        return NO_COMPILER
    if not compiler.python_headers:
        return "Python.h was not found (install Python's headers: python3-dev on Debian and Ubuntu)"
    return None


def other_platform() -> str | None:
    """Return "Darwin on arm64"; None for Linux on x86-64, the platform that compiled code is tested on."""
    system, machine = platform.system(), platform.machine()
    return None if (system, machine) in (("Linux", "x86_64"), ("Linux", "AMD64")) else f"{system} on {machine}"
