"""Our C++ operators for the CPU: compiled once with the machine's compiler, cached on disk, loaded into the dispatcher.

Without a compiler only speed is lost: torch runs each operator's reference or another fallback.
"""

import hashlib
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache as once
from itertools import repeat
from pathlib import Path

import torch

from ringkv.machine.processor import identity, refuses_amx
from ringkv.machine.tethered import tethered

SOURCES = Path(__file__).parent / "cpu"
BUILD = "-O3 -std=c++20 -fPIC -fopenmp -march=native -ffp-contract=fast -DAT_PARALLEL_OPENMP=1"
WITHOUT_AMX = ("-mno-amx-bf16", "-mno-amx-int8", "-mno-amx-tile")


@once
def load(compiler: str, cache: Path) -> Path:
    """Build the operators if they are not in `cache`, load them, and return the shared library's path.

    Raises RuntimeError with the compiler's last lines if the build fails.
    """
    command = [compiler, *_flags()]
    library = cache / f"ringkv-cpu-{_digest(command)}.so"
    if not library.exists():
        _build(command, library)
    torch.ops.load_library(str(library))
    return library


def _flags() -> list[str]:
    """at::vec selects its instructions by these macros, which must match torch's choice for this CPU."""
    capability = torch.backends.cpu.get_cpu_capability()
    vectors = f"-DCPU_CAPABILITY_{capability} -DCPU_CAPABILITY={capability}"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [*BUILD.split(), *vectors.split(), abi, *(WITHOUT_AMX if refuses_amx() else ())]


def _digest(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    sources = [path.read_text() for path in sorted(SOURCES.iterdir())]
    parts = [torch.__version__, version, identity(), *command, *sources]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(command: list[str], library: Path) -> None:
    """Compile in a temporary folder and rename: an interrupted build leaves no partial library."""
    from torch.utils import cpp_extension  # imports setuptools, which is slow and needed only to build

    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        include = [f"-I{path}" for path in cpp_extension.include_paths()]
        objects = {source: f"{folder}/{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            commands = ([*command, *include, "-c", str(source), "-o", target] for source, target in objects.items())
            list(pool.map(_run, commands, repeat(folder)))
        out = Path(folder) / library.name
        torch_lib = Path(torch.__file__).parent / "lib"
        link = [f"-L{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_lib}"]
        _run([*command, *objects.values(), "-o", str(out), "-shared", *link], folder)
        os.replace(out, library)


def _run(command: list[str], folder: str) -> None:
    environment = os.environ | {"TMPDIR": folder}
    done = subprocess.run(tethered(command), capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: " + "\n".join(done.stderr.splitlines()[-20:]))
