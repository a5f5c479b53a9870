import sys
from pathlib import Path

import pytest

from ringkv.machine import compiler


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path with one compiler on it, named clang++."""
    path = tmp_path / "clang++"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return path


def test_the_compiler_on_the_path_is_found(program: Path) -> None:
    found = compiler.find_compiler()
    assert found is not None
    assert found.path == str(program)


def test_cxx_takes_precedence(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    found = compiler.find_compiler()
    assert found is not None
    assert found.path == sys.executable


def test_a_cxx_that_does_not_exist_is_skipped(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = compiler.find_compiler()
    assert found is not None
    assert found.path == str(program)


def test_without_a_compiler_the_remedy_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.find_compiler() is None
    assert "g++" in str(compiler.missing_for_graphs())


@pytest.mark.parametrize(("system", "machine"), [("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64")])
def test_on_another_platform_the_reason_names_it(
    system: str, machine: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.platform, "system", lambda: system)
    monkeypatch.setattr(compiler.platform, "machine", lambda: machine)
    for reason in (compiler.missing_for_kernels(), compiler.missing_for_graphs()):
        assert f"{system} on {machine}" in str(reason)


def test_kernels_need_a_compiler_too(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.platform, "system", lambda: "Linux")
    monkeypatch.setattr(compiler.platform, "machine", lambda: "x86_64")
    assert compiler.missing_for_kernels() is None
    program.unlink()
    assert compiler.missing_for_kernels() == compiler.missing_for_graphs() == compiler.NO_COMPILER


def test_without_python_headers_the_remedy_names_the_package(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "python3-dev" in str(compiler.missing_for_graphs())
    (tmp_path / "Python.h").touch()
    assert compiler.missing_for_graphs() is None
