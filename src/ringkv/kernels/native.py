"""Our C++ operators for the CPU: compiled once with the machine's compiler, cached on disk, loaded into the dispatcher.

Without a compiler or AVX2 only speed is lost: torch runs each operator's reference or another fallback.
"""

import hashlib
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
from ringkv.kernels import constants
from ringkv.kernels.built import built
from ringkv.machine.folders import unwritable
from ringkv.machine.processor import identity, refuses_amx
from ringkv.machine.tethered import tethered

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
BUILD = "-O3 -std=c++20 -fPIC -fopenmp -march=native -ffp-contract=fast -DAT_PARALLEL_OPENMP=1"
WITHOUT_AMX = ("-mno-amx-bf16", "-mno-amx-int8", "-mno-amx-tile")


class Killed(RuntimeError):
    """A signal ended the compiler: it was interrupted, or memory ran out. The next start may succeed."""


@once
def load(
    compiler: str, cache: Path, on_build: Callable[[], None] = lambda: None, on_wait: Callable[[], None] = lambda: None
) -> Path:
    """Build the operators if they are not in `cache`, load them, and return the shared library's path.

    A build that failed is not tried again: its error is kept in `cache`. on_build: called before a build. on_wait:
    called if another process is at it.
    Raises RuntimeError with the compiler's last lines, and BadCache if `cache` cannot be written or is not ours alone.
    """
    command = [compiler, *_flags()]
    folder = _folder(command, cache)
    if _failure(folder).exists():
        raise RuntimeError(_remembered(folder))

    def make(into: Path) -> None:
        on_build()
        _build(command, _failure(folder), into)

    library = built(folder, make, on_wait) / LIBRARY
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise BadCache(f"{library} cannot be loaded ({error}); set RINGKV_CACHE to a folder on another disk") from None
    return library


def failure(compiler: str, cache: Path) -> str | None:
    """Return why the operators could not be built, and how to try again; None if no build has failed."""
    folder = _folder([compiler, *_flags()], cache)
    return _remembered(folder) if _failure(folder).exists() else None


def _folder(command: list[str], cache: Path) -> Path:
    return cache / f"ringkv-cpu-{_digest(command)}"


def _failure(folder: Path) -> Path:
    """Return the file that remembers a failed build."""
    return folder.with_name(f"{folder.name}.failed")


def _remembered(folder: Path) -> str:
    return f"{_failure(folder).read_text(encoding='utf-8')}\n(delete {_failure(folder)} to try again)"


def _flags() -> list[str]:
    """at::vec selects its instructions by these macros, which must match torch's choice for this CPU."""
    capability = torch.backends.cpu.get_cpu_capability()
    vectors = f"-DCPU_CAPABILITY_{capability} -DCPU_CAPABILITY={capability}"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [*BUILD.split(), *vectors.split(), abi, *(WITHOUT_AMX if refuses_amx() else ())]


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


def _build(command: list[str], failure: Path, into: Path) -> None:
    """Compile and link the library in the folder `into`; a compiler's error is also written to `failure`."""
    try:
        _compile(command, into)
    except Killed:
        raise
    except RuntimeError as error:
        if unwritable(into) is None:
            failure.write_text(str(error), encoding="utf-8")
        raise


def _compile(command: list[str], into: Path) -> None:
    torch_folder, scratch = Path(torch.__file__).parent, str(into.parent)
    (into.parent / "constants.h").write_text(header(), encoding="utf-8")
    # torch.utils.cpp_extension has these paths too; it imports setuptools, and CUDA builds of it log a warning.
    include = [f"-I{scratch}", *(f"-I{torch_folder / 'include' / path}" for path in (".", "torch/csrc/api/include"))]
    headers = shutil.copy(SOURCES / PRECOMPILED, scratch)  # the compiler looks for the compiled ones beside this file
    _run([*command, *include, "-x", "c++-header", headers, "-o", f"{headers}.gch"], scratch)
    compile_source = [*command, *include, "-include", headers, "-c"]
    objects = {source: f"{scratch}/{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = ([*compile_source, str(source), "-o", target] for source, target in objects.items())
        list(pool.map(_run, commands, repeat(scratch)))
    torch_lib = torch_folder / "lib"
    link = [f"-L{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_lib}"]
    _run([*command, *objects.values(), "-o", str(into / LIBRARY), "-shared", *link], scratch)


def _run(command: list[str], folder: str) -> None:
    environment = os.environ | {"TMPDIR": folder}
    done = subprocess.run(tethered(command), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        kind = Killed if done.returncode > 128 or "Killed signal" in done.stderr else RuntimeError
        raise kind(f"{command[0]} failed: " + "\n".join(done.stderr.splitlines()[-20:]))
