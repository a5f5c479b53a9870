"""Our C++ operators for the CPU: from the package, or compiled once with the machine's compiler and cached on disk.

Without either, or without AVX2, only speed is lost: torch runs each operator's reference or another fallback.
"""

import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache as once
from itertools import repeat
from pathlib import Path

import torch

from ringkv.base import zip_sizes
from ringkv.base.cache_spec import LATENT_GROUP
from ringkv.base.errors import BadCache
from ringkv.kernels import constants, shipped
from ringkv.kernels.built import built
from ringkv.machine.compiler import missing_for_kernels
from ringkv.machine.folders import unwritable
from ringkv.machine.processor import identity, refuses_amx
from ringkv.machine.tethered import tethered

log = logging.getLogger(__name__)
LIBRARY = "ringkv-cpu.so"
SOURCES = Path(__file__).parent / "cpu"
PRECOMPILED = "precompiled.h"
CONSTANTS: Mapping[str, int | float] = {
    "kWidthStep": constants.WIDTH_STEP,
    "kMaxInt8": constants.MAX_INT8,
    "kMaxInt4": constants.MAX_INT4,
    "kClip": constants.CLIP,
    "kClippedStep": constants.CLIPPED_STEP,
    "kChunk": constants.CHUNK,
    "kMinHalf": constants.MIN_HALF,
    "kMaxHalf": constants.MAX_HALF,
    "kOutward": constants.OUTWARD,
    "kLatentGroup": LATENT_GROUP,
    "kChunkTokens": zip_sizes.CHUNK,
    "kSalient": zip_sizes.SALIENT,
    "kFirst": constants.FIRST,
    "kBuffered": constants.BUFFERED,
    "kFixed": constants.FIXED,
    "kChunks": constants.CHUNKS,
    "kOldest": constants.OLDEST,
}
BUILD = "-O3 -std=c++20 -fPIC -fopenmp {instructions} -ffp-contract=fast -DAT_PARALLEL_OPENMP=1"
WITHOUT_AMX = ("-mno-amx-bf16", "-mno-amx-int8", "-mno-amx-tile")

OnBuild = Callable[[int, int], None]
"""Is called before a build and after each file, with the files done and all."""


class Killed(RuntimeError):
    """A signal ended the compiler: it was interrupted, or memory ran out. The next start may succeed."""


@once
def load(
    compiler: str | None,
    cache: Path,
    on_build: OnBuild = lambda done, total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Load the operators and return the shared library's path: the package's if one fits, else one built in `cache`.

    A build that failed is not tried again: its error is kept in `cache`. on_wait: called if another process is at it.
    Raises RuntimeError without a compiler or with its last lines, and BadCache if `cache` cannot be written or is not
    ours alone.
    """
    if (library := shipped.fitting()) and _loads(library):
        return library
    if compiler is None:
        raise RuntimeError(missing_for_kernels())
    return _load_built(compiler, folder(compiler, cache), on_build, on_wait)


def _loads(library: Path) -> bool:
    """Load a library of the package. Return False, with a warning, if torch or the system does not suit it."""
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        log.warning("the package's kernels do not suit this machine: %s", error.__cause__ or error)
        return False
    return True


def _load_built(compiler: str, folder: Path, on_build: OnBuild, on_wait: Callable[[], None]) -> Path:
    if failed := _remembered(folder):
        raise RuntimeError(failed)

    def make(into: Path) -> None:
        try:
            compile_library([compiler, *_flags()], into, on_build)
        except Killed:
            raise
        except RuntimeError as error:
            if unwritable(into) is None:
                _failure(folder).write_text(str(error), encoding="utf-8")
            raise

    library = built(folder, make, on_wait) / LIBRARY
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise BadCache(f"{library} cannot be loaded ({error}); set RINGKV_CACHE to a folder on another disk") from None
    return library


def failure(compiler: str, cache: Path) -> str | None:
    """Return why the operators could not be built, and how to try again; None if no build has failed."""
    return _remembered(folder(compiler, cache))


def folder(compiler: str, cache: Path) -> Path:
    """Return the folder that a compiler builds the operators in."""
    return cache / f"ringkv-cpu-{_digest([compiler, *_flags()])}"


def _failure(folder: Path) -> Path:
    """Return the file that remembers a failed build."""
    return folder.with_name(f"{folder.name}.failed")


def _remembered(folder: Path) -> str | None:
    file = _failure(folder)
    return f"{file.read_text(encoding='utf-8')}\n(delete {file} to try again)" if file.exists() else None


def _flags() -> list[str]:
    """Return the flags for this processor."""
    return [*flags("-march=native", torch.backends.cpu.get_cpu_capability()), *(WITHOUT_AMX if refuses_amx() else ())]


def flags(instructions: str, capability: str) -> list[str]:
    """Return the flags for some instructions. By the capability, in torch's words, at::vec selects its vectors."""
    vectors = f"-DCPU_CAPABILITY_{capability} -DCPU_CAPABILITY={capability}"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [*BUILD.format(instructions=instructions).split(), *vectors.split(), abi]


def _digest(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    sources = [path.read_text() for path in sorted(SOURCES.iterdir())]
    parts = [torch.__version__, version, identity(), *command, header(), *sources]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def header() -> str:
    """Return the text of constants.h: the numbers of `CONSTANTS`, as int64_t or rounded to float."""
    lines = (
        f"constexpr int64_t {name} = {value};"
        if isinstance(value, int)
        else f"constexpr float {name} = float({value.hex()});"
        for name, value in CONSTANTS.items()
    )
    return "\n".join(("#pragma once", "#include <cstdint>", "namespace ringkv {", *lines, "}", ""))


def compile_library(command: list[str], into: Path, on_build: OnBuild) -> None:
    """Compile and link the library in the folder `into`, beside which scratch files are left."""
    torch_folder, scratch = Path(torch.__file__).parent, str(into.parent)
    sources = sorted(SOURCES.glob("*.cpp"))
    on_build(0, len(sources))
    (into.parent / "constants.h").write_text(header(), encoding="utf-8")
    # torch.utils.cpp_extension has these paths too; it imports setuptools, and CUDA builds of it log a warning.
    include = [f"-I{scratch}", *(f"-I{torch_folder / 'include' / path}" for path in (".", "torch/csrc/api/include"))]
    headers = shutil.copy(SOURCES / PRECOMPILED, scratch)  # the compiler looks for the compiled ones beside this file
    _run([*command, *include, "-x", "c++-header", headers, "-o", f"{headers}.gch"], scratch)
    compile_source = [*command, *include, "-include", headers, "-c"]
    objects = {source: f"{scratch}/{source.stem}.o" for source in sources}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = ([*compile_source, str(source), "-o", target] for source, target in objects.items())
        for done, _ in enumerate(pool.map(_run, commands, repeat(scratch)), 1):
            on_build(done, len(sources))
    # No path to torch's libraries: they are in this process before this one is loaded.
    link = [f"-L{torch_folder / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    _run([*command, *objects.values(), "-o", str(into / LIBRARY), "-shared", *link], scratch)


def _run(command: list[str], folder: str) -> None:
    environment = os.environ | {"TMPDIR": folder}
    done = subprocess.run(tethered(command), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        kind = Killed if done.returncode > 128 or "Killed signal" in done.stderr else RuntimeError
        raise kind(f"{command[0]} failed: " + "\n".join(done.stderr.splitlines()[-20:]))
