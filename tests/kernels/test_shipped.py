"""Which library of a package fits a torch and a processor."""

import re
from pathlib import Path

import pytest
import torch

from ringkv.kernels import native, shipped

ZEN3 = frozenset(["avx", "avx2", "abm", "bmi1", "bmi2", "f16c", "fma", "movbe", "sse4_2", "vaes"])
SKYLAKE = ZEN3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
ICE_LAKE = SKYLAKE | frozenset(["avx512_vnni", "avx512vbmi"])
ALDER_LAKE = ZEN3 | {"avx_vnni"}
ZEN4 = ICE_LAKE | {"avx512_bf16"}
SAPPHIRE_RAPIDS = ZEN4 | frozenset(["amx_tile", "amx_bf16", "amx_int8"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a library for each level, of torch 2.13."""
    folder = tmp_path / "torch-2.13"
    folder.mkdir()
    for name in shipped.LEVELS:
        (folder / f"{name}.so").write_bytes(b"no library")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    on(monkeypatch, ZEN3)
    return folder


def on(
    monkeypatch: pytest.MonkeyPatch,
    instructions: frozenset[str],
    capability: str = "AVX512",
    torch_version: str = "2.13.1+cpu",
    refuses_amx: bool = False,
) -> None:
    """Make this machine one with these instructions and this torch."""
    monkeypatch.setattr(shipped, "instructions", lambda: instructions)
    monkeypatch.setattr(shipped, "refuses_amx", lambda: refuses_amx)
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@pytest.mark.parametrize(
    ("instructions", "level"),
    [
        (ZEN3, "avx2"),
        (ALDER_LAKE, "avx2-vnni"),
        (SKYLAKE, "avx512"),
        (ICE_LAKE, "avx512-vnni"),
        (ZEN4, "avx512-bf16"),
        (SAPPHIRE_RAPIDS | {"avx_vnni"}, "amx"),
    ],
)
def test_a_processor_gets_the_fastest_level_whose_instructions_it_has(
    package: Path, monkeypatch: pytest.MonkeyPatch, instructions: frozenset[str], level: str
) -> None:
    on(monkeypatch, instructions)
    assert shipped.fitting() == package / f"{level}.so"


def test_a_processor_without_avx2_gets_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, ZEN3 - {"fma"}, "DEFAULT")
    assert shipped.fitting() is None


def test_a_system_that_refuses_amx_gets_the_level_below(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, SAPPHIRE_RAPIDS, refuses_amx=True)
    assert shipped.fitting() == package / "avx512-bf16.so"


def test_vectors_that_a_user_limits_in_torch_limit_the_level(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, ZEN4, "AVX2")
    assert shipped.fitting() == package / "avx2.so"


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cu130"])
def test_another_minor_version_of_torch_gets_none(package: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    on(monkeypatch, ZEN4, torch_version=version)
    assert shipped.fitting() is None


def test_a_level_that_the_package_lacks_is_skipped(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, ZEN4)
    (package / "avx512-bf16.so").unlink()
    assert shipped.fitting() == package / "avx512-vnni.so"


def test_a_library_that_cannot_be_loaded_is_named_and_kernels_are_compiled(
    package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || { echo it was called >&2; exit 1; }\n")
    compiler.chmod(0o700)
    with pytest.raises(RuntimeError, match="it was called"):
        native.load(str(compiler), tmp_path / "kernels")
    assert f"the package's kernels do not suit this machine: {package}/avx2.so: " in caplog.text


def test_without_a_library_and_a_compiler_the_error_is_what_to_install(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, ZEN3, torch_version="2.12.1")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match=re.escape("install g++")):
        native.load(None, tmp_path / "kernels")


def test_the_flags_of_a_level_allow_the_instructions_that_it_needs_and_no_others() -> None:
    spelled = {name: name.replace("_", "") for name in ("avx_vnni", "avx512_vnni", "avx512_bf16")}
    spelled |= {name: name.replace("_", "-") for name in ("amx_tile", "amx_bf16", "amx_int8")}
    for level in shipped.LEVELS.values():
        base, *more = (flag.removeprefix("-m") for flag in level.flags.split() if not flag.startswith("-mtune"))
        of_base = {"arch=x86-64-v3": shipped.V3, "arch=x86-64-v4": f"{shipped.V3} {shipped.V4}"}[base]
        assert {spelled.get(name, name) for name in level.needs.split()} == {*of_base.split(), *more}
