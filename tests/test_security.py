"""SECURITY.md cites tests that exist, and models bring no code."""

import ast
import re
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
