"""Rules of the project as a whole."""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
TORCH_PICKLERS = {"torch.load", "torch.save", "torch.jit.load"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level name of each module that a file imports, and its dotted names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
                yield from (f"{module}.{name.name}" for name in node.names)


def used(tree: ast.AST) -> Iterator[str]:
    """Yield each dotted name that a file uses: `torch.load` from `torch.load(path)`."""
    return (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def picklers(source: str) -> set[str]:
    """Return the modules and functions in a file that can run code from the bytes they read."""
    tree = ast.parse(source)
    return {*imported(tree), *used(tree)} & (PICKLERS | TORCH_PICKLERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_source_file_can_unpickle(path: Path) -> None:
    assert picklers(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "def f():\n import shelve", "import torch\ntorch.load('x')"],
)
def test_the_search_for_picklers_finds_them(source: str) -> None:
    assert picklers(source)


def test_from_torch_import_load_is_found() -> None:
    assert picklers("from torch import load") == {"torch.load"}


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert [folder for folder in folders if folder.name != "src" and not (folder / "__init__.py").exists()] == []


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    code = (
        f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module", ["ringkv", "ringkv.cli.application", "ringkv.llm.llm", "ringkv.plan.resolve", "ringkv.scheduler.loop"]
)
def test_importing_stays_quick(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert "ringkv" in loaded
    assert not loaded & {"torch", "transformers", "triton"}


def test_pinned_versions_are_inside_the_ranges_that_users_get() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    for requirement in map(Requirement, required):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_torch_is_pinned_to_the_build_for_small_machines() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
