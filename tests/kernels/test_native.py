"""Builds of the C++ operators for other processors: everything must compile without AVX-512, too."""

import subprocess
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.cpp")), ids=lambda source: source.stem)
def test_it_compiles_for_a_processor_with_avx2_alone(source: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    flags = [flag for flag in BUILD.split() if flag != "-march=native"]
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    done = subprocess.run(
        [compiler.path, *flags, *OLDER, *include, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
