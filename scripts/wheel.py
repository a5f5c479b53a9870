"""Build the wheel with compiled CPU kernels, for the torch of this environment: `python scripts/wheel.py [LEVEL ...]`.

The kernels are compiled for the levels of processors in `kernels/shipped.py`, by default for all, each of which takes
two or three minutes of processor time. That needs g++ 12 or newer. hatch_build.py puts them into the wheel, in dist.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ringkv.kernels import native, shipped
from ringkv.machine.compiler import find_compiler, missing_for_kernels

ROOT = Path(__file__).resolve().parent.parent


def main(levels: Sequence[str], folder: Path) -> None:
    """Write the wheel with these levels into a folder."""
    compiler = find_compiler()
    if compiler is None:
        sys.exit(missing_for_kernels())
    with TemporaryDirectory() as scratch:
        for name in levels:
            print(f"compiling kernels for {name}", flush=True)
            target = shipped.library(name, Path(scratch) / "binaries")
            compile_level(compiler.path, shipped.LEVELS[name], target, Path(scratch) / name)
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        environment = os.environ | {"RINGKV_BINARIES": f"{scratch}/binaries"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def compile_level(compiler: str, level: shipped.Level, target: Path, scratch: Path) -> None:
    """Compile the kernels of one level into `target`, without symbols that only debuggers need."""
    into = scratch / "built"
    into.mkdir(parents=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    native.compile_library(
        [compiler, *native.flags(level.flags, level.capability), "-s"], into, lambda done, total: None
    )
    (into / native.LIBRARY).rename(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("levels", nargs="*", default=list(shipped.LEVELS), metavar="LEVEL")
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="where the wheel is written: dist")
    args = parser.parse_args()
    main(args.levels, args.directory.absolute())
