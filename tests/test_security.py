"""SECURITY.md cites tests that exist, and models bring no code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(r"^\| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)[2:]


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0])
def test_every_class_of_vulnerability_has_tests_and_they_exist(row: str) -> None:
    cited = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
    assert cited
    assert [(file, name) for file, name in cited if name not in functions(ROOT / file)] == []


def test_the_table_has_the_classes_that_peers_had() -> None:
    assert len(ROWS) >= 17
    assert len(re.findall(r"CVE-\d{4}-\d+", "".join(ROWS))) >= 20


def test_no_source_file_can_run_a_models_own_code() -> None:
    """transformers would import a model's modules."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        assert not names & {"exec", "eval", "__import__"}, path
        assert not {module.partition(".")[0] for module in modules} & {"transformers", "runpy"}, path
        assert "trust_remote_code" not in keywords, path


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield each module that a file imports, and each name that it imports from one."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module, *(f"{module}.{name.name}" for name in names))


def called(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a file calls, with its dots, and "shell" if a call has that argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            yield from ("shell" for keyword in node.keywords if keyword.arg == "shell")


RUNS_TEXT = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)|yaml(\..+)?|os\.(system|popen)|subprocess\.get\w*output|shell"
)
FETCHES = re.compile(r"(urllib\.request|http\.client|ftplib|requests|httpx|aiohttp|urllib3|huggingface_hub)(\..+)?")


def uses(source: str, forbidden: re.Pattern[str]) -> set[str]:
    """Return the forbidden names that a file imports or calls."""
    tree = ast.parse(source)
    return {name for name in (*imported(tree), *called(tree)) if forbidden.fullmatch(name)}


def test_no_source_file_runs_text_as_code_or_as_a_command_line() -> None:
    found = {str(path): uses(path.read_text(encoding="utf-8"), RUNS_TEXT) for path in (ROOT / "src").rglob("*.py")}
    assert {path: used for path, used in found.items() if used} == {}


def test_only_downloads_of_models_fetch_from_other_machines() -> None:
    sources = ROOT / "src" / "ringkv"
    found = {path for path in sources.rglob("*.py") if uses(path.read_text(encoding="utf-8"), FETCHES)}
    assert found == {sources / "residency" / "download.py", sources / "residency" / "locate.py"}


@pytest.mark.parametrize(
    ("source", "forbidden"),
    [
        ("eval('1')", RUNS_TEXT),
        ("import builtins\nbuiltins.exec('1')", RUNS_TEXT),
        ("from yaml import load", RUNS_TEXT),
        ("import os\nos.system('ls')", RUNS_TEXT),
        ("from os import popen", RUNS_TEXT),
        ("import subprocess\nsubprocess.run('ls', shell=True)", RUNS_TEXT),
        ("def f():\n import urllib.request", FETCHES),
        ("from http import client", FETCHES),
        ("from requests import get", FETCHES),
    ],
)
def test_the_search_finds_what_it_forbids(source: str, forbidden: re.Pattern[str]) -> None:
    assert uses(source, forbidden)
    assert not uses("import re\nre.compile('a')\nsubprocess.run(['ls'])", forbidden)
