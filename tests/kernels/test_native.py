"""Builds of the C++ operators: the flags, and what an interruption leaves."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slow_compiler

from ringkv.kernels import native
from ringkv.kernels.native import CONSTANTS


@pytest.mark.parametrize("refused", [True, False])
def test_kernels_are_built_without_amx_if_the_system_refuses_its_registers(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "refuses_amx", lambda: refused)
    assert ("-mno-amx-tile" in native._flags()) is refused


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2", "AVX512"])
def test_a_processor_without_avx2_gets_no_kernels(capability: str) -> None:
    compiler = shutil.which("g++")  # not that of `make avx2`, which always has AVX2
    if compiler is None:
        pytest.skip("no g++ on this machine")
    source = native.SOURCES / native.PRECOMPILED
    command = [compiler, "-E", "-x", "c++", f"-DCPU_CAPABILITY_{capability}", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ("the C++ kernels need a processor with AVX2" in done.stderr) is (capability == "DEFAULT")


def test_the_header_has_the_values_of_python() -> None:
    found = dict(re.findall(r"constexpr \w+ (\w+) = (?:float\()?([^;)]+)", native.header()))
    assert {name: float.fromhex(text) if "x" in text else int(text) for name, text in found.items()} == CONSTANTS


def test_a_build_that_is_killed_leaves_no_compiler(tmp_path: Path) -> None:
    compiler = slow_compiler.save(tmp_path)
    code = f"from pathlib import Path; from ringkv.kernels import native; native.load({str(compiler)!r}, Path('cache'))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as build:
        started = slow_compiler.within(30, lambda: len(slow_compiler.running(compiler)) >= 2)
        build.kill()
    assert started
    assert slow_compiler.within(2, lambda: not slow_compiler.running(compiler))
