"""Sums, maxima and concatenations over processes that share memory, against torch in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from ringkv.kernels import native
from ringkv.kernels.collective import shared_memory
from ringkv.machine.compiler import find_compiler
from ringkv.machine.folders import cache_dir

PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.fixture(scope="module")
def library(compiled: None) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    return native.load(compiler.path, cache_dir() / "kernels")


def ran(library: Path, count: int, death: str = "") -> list[tuple[int, str]]:
    """Run so many ranks; return the exit status and the output of each."""
    descriptor = shared_memory()
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(library), str(descriptor), str(rank), str(count), death],
            stdout=subprocess.PIPE,
            pass_fds=[descriptor],
            text=True,
        )
        for rank in range(count)
    ]
    return [(process.wait(), process.communicate()[0]) for process in processes]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_ranks_get_the_same_sums_and_parts(count: int, library: Path) -> None:
    assert ran(library, count) == [(0, "")] * count


@pytest.mark.slow  # processes
@pytest.mark.parametrize(
    ("death", "message"), [("ends", "rank 2 has ended"), ("stops", "rank 2 has not answered for 2 s")]
)
def test_ranks_that_wait_for_one_that_is_gone_fail_and_name_it(death: str, message: str, library: Path) -> None:
    *others, gone = ran(library, 3, death)
    assert others == [(0, f"{message}\n")] * 2
    assert gone == (-9, "")
