"""shape: how large the code is, and how many places one more encoding, setting or operator touches. It gates nothing.

    python -m bench.shape [--commit f512e044]           # one column, or an earlier commit's beside this one
    python -m bench.shape --time 'make test'             # runs the command and records its minutes

All lines are those that `wc -l` counts, of files that git tracks. Python is counted by its syntax tree, so no module of
ringkv is imported, except `ringkv.kernels.library` by a process of its own: only torch knows which schemas it declares.

operators             schemas that `ringkv.kernels.library` declares, twins such as `_any` and `_tiles` included
decode attention      of them, those whose names begin with `decode_attend` or `cache_attend`
bodies                classes of `cache/` that are named Body or derive from it, directly or not
long signatures       functions of `src` with more than 8 parameters, self and cls not counted and *args counted as one;
                      functions under `triton.jit` are left out
refusals              `raise InvalidRequest(...)` in `src`; of them, those whose arguments say "not implemented"
not implemented       how often `src` has these two words, in whatever error or comment
import circles        the sizes of strongly connected groups of two or more modules of `src`; imports inside functions
                      and under TYPE_CHECKING count as imports
files that name X     Python and C++ files of `src` with X in a name or string; comments and docstrings do not count.
                      It stands for the files to edit for one more encoding; int4, int8 and fp8 name weights too
files of a setting    the same for each field of a class that begins with `kv_`: the median and the largest of them
CPU minutes           user and system time of a command with all its children, as recorded by --time
"""

import ast
import io
import json
import re
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import command_line
from bench.beside import checked_out, of_tree
from bench.data import REPOSITORY
from bench.results import RESULTS, children_seconds, commit, described, table

TIMES = RESULTS / "shape.json"
ENCODINGS = ("int8", "int4", "fp8", "turbo4")
DECODE = ("decode_attend", "cache_attend")
PARAMETERS = 8
CODE = (".py", ".cpp", ".h")
NAMES = """
import torch
import ringkv.kernels.library
schemas = {schema.name for schema in torch._C._jit_get_all_schemas()}
print(*sorted(name.removeprefix("ringkv::") for name in schemas if name.startswith("ringkv::")))
"""

Modules = Mapping[str, ast.Module]  # by dotted name
Imports = Mapping[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--commit", help="an earlier commit, as a column before this tree's")
    parser.add_argument("--time", metavar="COMMAND", help="run a command and record its CPU and wall minutes")
    args = parser.parse_args()
    if args.time:
        sys.exit(record(args.time, TIMES))
    columns = {"now": shape(REPOSITORY, tracked(REPOSITORY)) | minutes(TIMES)}
    if args.commit:
        with checked_out(args.commit) as before:
            files = [path for path in before.rglob("*") if path.is_file()]
            columns = {args.commit: shape(before, files) | minutes(before / TIMES.relative_to(REPOSITORY))} | columns
    print(_table(columns))


def shape(root: Path, files: Iterable[Path]) -> dict[str, float | str]:
    """Count a tree. files: all that git tracks in it."""
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files if path.suffix in CODE
    }
    code = {name: text for name, text in texts.items() if name.startswith("src/") and name.endswith(CODE)}
    modules = {_dotted(name): ast.parse(text) for name, text in code.items() if name.endswith(".py")}
    edges = imports(modules)
    operators = declared(root)
    raised = (node.exc for node in nodes(modules.values(), ast.Raise) if isinstance(node.exc, ast.Call))
    refusals = [call for call in raised if ast.unparse(call.func) == "InvalidRequest"]
    mentions = {name: words(name, text) for name, text in code.items()}
    return {
        "operators": len(operators),
        "decode attention operators": len([name for name in operators if name.startswith(DECODE)]),
        "body classes": len(derived(modules, "ringkv.cache", "Body")),
        "long signatures": sum(map(is_long, nodes(modules.values(), ast.FunctionDef, ast.AsyncFunctionDef))),
        "refusals": len(refusals),
        "refusals, not implemented": len([call for call in refusals if "not implemented" in ast.unparse(call)]),
        "not implemented, in any text": sum(text.count("not implemented") for text in code.values()),
        "import circles": "+".join(str(len(circle)) for circle in circles(edges)) or "none",
        "lines of src, Python and C++": sum(text.count("\n") for text in code.values()),
        "lines of bench, Python": _lines(texts, "bench/"),
        "lines of tests, Python": _lines(texts, "tests/"),
        **{f"files that name {encoding}": _files_that_name(encoding, mentions) for encoding in ENCODINGS},
        **_setting_files(settings(modules.values()), mentions),
    }


def declared(root: Path) -> list[str]:
    """Return the names of the operators that a tree's library declares."""
    command = [sys.executable, "-c", NAMES]
    return subprocess.run(command, capture_output=True, text=True, check=True, **of_tree(root)).stdout.split()


def nodes(trees: Iterable[ast.Module], *classes: type[ast.AST]) -> Iterator[Any]:
    """Yield all nodes of these classes."""
    return (node for tree in trees for node in ast.walk(tree) if isinstance(node, classes))


def derived(modules: Modules, package: str, base: str) -> set[str]:
    """Return a package's classes that have this name or derive from one that does."""
    classes = list(nodes([tree for name, tree in modules.items() if name.startswith(package)], ast.ClassDef))
    names = {node.name for node in classes if node.name == base}
    while more := {node.name for node in classes if names & set(map(ast.unparse, node.bases))} - names:
        names |= more
    return names


def is_long(function: Function) -> bool:
    """Whether a function that is no Triton kernel has too many parameters."""
    given = function.args
    parameters = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    names = [parameter.arg for parameter in parameters if parameter]
    is_kernel = any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)
    return not is_kernel and len([name for name in names if name not in ("self", "cls")]) > PARAMETERS


def imports(modules: Modules) -> Imports:
    """Return which of these modules each one imports."""
    edges: dict[str, set[str]] = {}
    for name, tree in modules.items():
        targets: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= inner & modules.keys() or {node.module}
        edges[name] = targets & modules.keys() - {name}
    return edges


def circles(edges: Imports) -> list[set[str]]:
    """Return the groups of modules that reach each other, largest first."""
    reached = {name: _reached(name, edges) for name in edges}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in edges}
    return sorted((set(group) for group in groups if len(group) > 1), key=len, reverse=True)


def settings(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of annotated fields of classes that begin with `kv_`."""
    bodies = (node.body for node in nodes(trees, ast.ClassDef))
    fields = (line.target for body in bodies for line in body if isinstance(line, ast.AnnAssign))
    return {field.id for field in fields if isinstance(field, ast.Name) and field.id.startswith("kv_")}


def words(name: str, text: str) -> str:
    """Return a file's path, and its names and strings without comments and docstrings."""
    if not name.endswith(".py"):
        return name + re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    kept = [name]
    starts_line = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and starts_line
        if token.type != tokenize.COMMENT and not is_docstring:
            kept.append(token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            starts_line = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return " ".join(kept)


def record(command: str, path: Path) -> int:
    """Run a command, write its minutes to the file in place of the command's earlier ones, and return its exit code."""
    started = time.monotonic()
    code = subprocess.run(command, shell=True, check=False, cwd=REPOSITORY).returncode
    taken = {
        "cpu_minutes": round(children_seconds() / 60, 2),
        "wall_minutes": round((time.monotonic() - started) / 60, 2),
        "exit_code": code,
        "machine": described(),
        "commit": commit(),
    }
    path.write_text(json.dumps(_recorded(path) | {command: taken}, indent=1) + "\n", encoding="utf-8")
    return code


def minutes(path: Path) -> dict[str, float | str]:
    return {f"CPU minutes of `{command}`": taken["cpu_minutes"] for command, taken in _recorded(path).items()}


def tracked(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def _recorded(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _setting_files(names: set[str], mentions: Mapping[str, str]) -> dict[str, float]:
    files = [_files_that_name(name, mentions) for name in names]
    return {
        "settings named kv_": len(names),
        "files of a setting, median": median(files) if files else 0,
        "files of a setting, largest": max(files, default=0),
    }


def _files_that_name(word: str, mentions: Mapping[str, str]) -> int:
    named = re.compile(rf"(?<![a-zA-Z0-9]){word}(?![a-zA-Z0-9])", re.IGNORECASE)
    return len([name for name, text in mentions.items() if named.search(text)])


def _reached(start: str, edges: Imports) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = edges[waiting.pop()] - reached
        reached |= fresh
        waiting += fresh
    return reached


def _lines(texts: Mapping[str, str], folder: str) -> int:
    return sum(text.count("\n") for name, text in texts.items() if name.startswith(folder) and name.endswith(".py"))


def _dotted(name: str) -> str:
    return name.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _table(columns: Mapping[str, Mapping[str, float | str]]) -> str:
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(str(column.get(name, "-")) for column in columns.values())) for name in names]
    return table(("", *columns), rows)


if __name__ == "__main__":
    main()
