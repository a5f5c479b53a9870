"""Builds of the C++ operators for other processors: everything must compile without AVX-512, too."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import slow_compiler
from torch.utils import cpp_extension

from ringkv.kernels import native
from ringkv.kernels.native import BUILD, SOURCES
from ringkv.machine.compiler import find_compiler

OLDER = ["-march=haswell", "-DCPU_CAPABILITY_AVX2", "-DCPU_CAPABILITY=AVX2", "-fsyntax-only"]


@pytest.mark.parametrize("refused", [True, False])
def test_kernels_are_built_without_amx_if_the_system_refuses_its_registers(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "refuses_amx", lambda: refused)
    assert ("-mno-amx-tile" in native._flags()) is refused


@pytest.mark.slow
def test_it_compiles_for_a_processor_with_avx2_alone() -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    flags = [flag for flag in BUILD.split() if flag != "-march=native"]
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    command = [compiler.path, *flags, *OLDER, *include]

    def errors(source: Path) -> str:
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        return f"{source.name}: {done.stderr[-2000:]}" if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [text for text in pool.map(errors, sorted(SOURCES.glob("*.cpp"))) if text]
    assert not failed, failed


def test_a_build_that_is_killed_leaves_no_compiler(tmp_path: Path) -> None:
    compiler = slow_compiler.save(tmp_path)
    code = f"from pathlib import Path; from ringkv.kernels import native; native.load({str(compiler)!r}, Path('cache'))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as build:
        started = slow_compiler.within(30, lambda: len(slow_compiler.running(compiler)) >= 2)
        build.kill()
    assert started
    assert slow_compiler.within(2, lambda: not slow_compiler.running(compiler))
