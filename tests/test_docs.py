"""The documents agree with the code."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_picture_is_the_output_of_its_script() -> None:
    assert (ROOT / "docs" / "memory.svg").read_text() == script("picture").picture()


def test_the_table_of_settings_is_the_output_of_its_script() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    assert page == script("settings").with_table(page), "run python scripts/settings.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    broken = [link for link in targets if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_pages_resolve_to_a_heading(page: Path) -> None:
    broken = []
    for name, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        target = (page.parent / name) if name else page
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
        broken += [anchor] * (anchor not in map(slug, headings))
    assert broken == []


def words(text: str) -> int:
    """Return how many words a page has, without the marks of tables and code."""
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_documents_stay_short() -> None:
    """The README is read in two minutes up to its limits, a how-to is one page, others take a quarter of an hour."""
    readme = (ROOT / "README.md").read_text()
    assert words(readme.partition("\n## Limits\n")[0]) <= 500
    for page in PAGES:
        assert words(page.read_text()) <= (900 if page.parent.name == "how-to" else 4000), page


def test_the_index_links_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)", index.read_text())}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} - {index} <= linked


def shell_commands(page: Path) -> str:
    """Return the shell commands of a page."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL))


def test_commands_in_the_documents_exist() -> None:
    from ringkv.cli.application import app

    lines = "\n".join(map(shell_commands, PAGES))
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    used = re.findall(r"^(?:\w+=\S+ )*ringkv (\w+)([^#\n]*)", lines, re.MULTILINE)
    assert {"demo", "serve", "eval"} <= {name for name, _ in used} <= set(commands)
    for name, arguments in used:
        flags = {flag for option in commands[name].params for flag in (*option.opts, *option.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", arguments)) - flags <= {"--help"}, name
    targets = re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"^make (\w+)", lines, re.MULTILINE))
    assert {"test", "bench"} <= named <= {name for line in targets for name in line.split()}


def test_modules_in_the_documents_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"python -m (bench[.\w]*\w)", page.read_text())}
    assert "bench.report" in named
    assert [name for name in named - {"bench.NAME"} if importlib.util.find_spec(name) is None] == []
