"""Each folder's `__init__` says what it is and which of its modules others import; no modules import in a circle."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
FACE = re.compile(r"^Others import (.+?)\.$", re.MULTILINE | re.DOTALL)
ANY = "any module of it"


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
FOLDERS = [name for name, path in PATHS.items() if path.name == "__init__.py" and name != "ringkv"]


def imported(path: Path) -> Iterator[str]:
    """Yield our modules that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in PATHS)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                names_of_modules = (f"{module}.{alias.name}" for alias in names)
                yield from (name if name in PATHS else module for name in names_of_modules if module in PATHS)


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the modules that each module imports."""
    return {name: frozenset(imported(path)) for name, path in PATHS.items()}


def outside(folder: str) -> set[str]:
    """Return the modules of a folder that modules outside of it import, by their names within the folder."""
    prefix = f"{folder}."
    importers = (names for module, names in imports().items() if module != folder and not module.startswith(prefix))
    return {name.removeprefix(prefix) for names in importers for name in names if name.startswith(prefix)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_init_is_a_docstring_that_names_what_others_import(folder: str) -> None:
    tree = ast.parse(PATHS[folder].read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree)
    assert docstring is not None
    assert len(tree.body) == 1
    face = FACE.search(docstring)
    assert face is not None
    if face[1] != ANY:
        assert set(re.findall(r"`([\w.]+)`", face[1])) == outside(folder)


@pytest.mark.parametrize("room", [room for room in FOLDERS if room.count(".") == 1])
def test_no_modules_of_a_room_import_in_a_circle(room: str) -> None:
    """Between rooms there is none, since they import downward only."""
    within = {name: names for name, names in imports().items() if name.startswith(f"{room}.")}
    try:
        TopologicalSorter(within).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
