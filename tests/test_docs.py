"""The documents agree with the code."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    broken = [link for link in targets if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_resolve_to_a_heading(page: Path) -> None:
    broken = []
    for name, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        target = (page.parent / name) if name else page
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
        broken += [anchor] * (anchor not in map(slug, headings))
    assert broken == []


def test_the_documents_stay_short() -> None:
    """A page takes a quarter of an hour to read, the README two minutes."""
    words = {page.name: len(page.read_text().split()) for page in PAGES}
    assert words.pop("README.md") <= 1200
    assert max(words.values()) < 4_500


def shell_commands(page: Path) -> str:
    """Return the shell commands of a page."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL))


def test_commands_in_the_documents_exist() -> None:
    from ringkv.cli.application import app

    lines = "\n".join(map(shell_commands, PAGES))
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {"demo", "serve", "eval"} <= set(re.findall(r"^ringkv (\w+)", lines, re.MULTILINE)) <= commands
    targets = re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"^make (\w+)", lines, re.MULTILINE))
    assert {"test", "bench"} <= named <= {name for line in targets for name in line.split()}


def test_modules_in_the_documents_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"python -m (bench[.\w]*\w)", page.read_text())}
    assert "bench.report" in named
    assert [name for name in named - {"bench.NAME"} if importlib.util.find_spec(name) is None] == []
