"""Ahead-of-time graphs against the plain call of the same function."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.graphs import aot
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import Eager, StaticFunction
from ringkv.machine.compiler import find_compiler, missing_for_graphs
from ringkv.machine.tethered import script
from tests import slow_compiler

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))


def count_and_scale(x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """Change an argument in place, as a layer changes a cache."""
    seen.add_(1)
    return (torch.softmax(x * seen, -1), x.sum(-1))


COUNT = StaticFunction(count_and_scale, "count and scale", dynamic={0: (0,), 1: (0,)})
STATIC = replace(COUNT, dynamic={})


def broken(x: Tensor) -> tuple[Tensor, ...]:
    return (x if x.sum() > 0 else -x,)  # a branch on a value: no static graph


@pytest.fixture
def backend(tmp_path: Path) -> AheadOfTime:
    compiler = find_compiler()
    assert compiler is not None
    return AheadOfTime(tmp_path, compiler.path, "source", lambda name: None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AheadOfTime]:
    """A backend that has compiled COUNT for a single row."""
    compiler = find_compiler()
    assert compiler is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aot, "native_operators", list)  # as in a process that has loaded no kernels
        backend = AheadOfTime(tmp_path_factory.mktemp("graphs"), compiler.path, "source", lambda name: None)
        backend.make("f", COUNT, example(rows=1))
        yield backend


def example(rows: int = 3) -> list[Tensor]:
    return [torch.randn(rows, 5), torch.ones(rows, 1)]


@pytest.mark.slow  # compiles graphs
@pytest.mark.parametrize("rows", [1, 6, 9, 4])  # torch alone would take the length of 1 as a constant
def test_a_compiled_graph_does_what_the_function_does_for_every_length_of_a_dynamic_dimension(
    compiled: AheadOfTime, rows: int
) -> None:
    x, seen = example(rows)
    graph, seen_eagerly = compiled.make("f", COUNT, [x, seen]), seen.clone()
    for _ in range(3):
        got, want = graph([x, seen]), Eager().make("f", COUNT, [])([x, seen_eagerly])
        torch.testing.assert_close(list(got), list(want))
    assert seen.flatten().tolist() == [4.0] * rows
    assert compiled.builds == 1


@pytest.mark.slow  # compiles a graph
def test_a_graph_found_on_disk_is_loaded_without_the_compiler(compiled: AheadOfTime) -> None:
    code = f"""
import sys
from pathlib import Path
import torch
torch.set_num_threads({torch.get_num_threads()})
from tests.graphs.test_aot import AheadOfTime, COUNT, example
again = AheadOfTime(Path({str(compiled.folder)!r}), {compiled.compiler!r}, {compiled.source!r}, print)
x, seen = example()
print(again.make("f", COUNT, [x, seen])([x, seen])[0].shape, again.builds, seen[0, 0].item())
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    found, modules = done.stdout.splitlines()
    assert found == "torch.Size([3, 5]) 0 2.0"
    assert {"torch._inductor", "torch._dynamo", "sympy"} & set(modules.split()) == set()


def test_the_key_depends_on_shapes_types_threads_the_processor_and_our_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(arguments: list[Tensor], source: str = "source", function: StaticFunction = STATIC) -> str:
        return aot._digest("c++", source, function, arguments)

    monkeypatch.setattr(aot, "_version", lambda compiler: "one")
    keys = {key(example()), key(example(4)), key([t.double() for t in example()])}
    monkeypatch.setattr(aot, "_version", lambda compiler: "two")
    keys.add(key(example()))
    keys.add(key(example(), source="changed"))
    keys.add(key(example(), function=replace(STATIC, key="another")))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys.add(key(example()))
    torch.set_num_threads(threads)
    monkeypatch.setattr(aot, "identity", lambda: "another processor")
    keys.add(key(example()))
    assert len(keys) == 8
    assert key(example()) in keys


@pytest.mark.slow
def test_no_precompiled_headers_come_from_a_folder_that_others_can_write_to(
    backend: AheadOfTime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch keeps them in /tmp, under a name that anybody can guess."""
    codecache, shared = importlib.import_module("torch._inductor.codecache"), tmp_path / "shared"
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(shared))
    codecache._precompile_header.cache_clear()
    backend.make("f", COUNT, example())
    assert not shared.exists()
    assert any((backend.folder.parent / "inductor" / "precompiled_headers").glob("*.gch"))
    assert codecache._HEADER_DIR == str(shared)


def test_precompiled_headers_are_deleted_and_their_text_stays_for_others_that_compile(backend: AheadOfTime) -> None:
    headers = backend.folder.parent / "inductor" / "precompiled_headers"
    headers.mkdir(parents=True)
    for name in ("a.h", "a.h.gch", "b.h.gch"):
        (headers / name).touch()
    backend.discard_headers()
    assert [path.name for path in headers.iterdir()] == ["a.h"]


def test_a_build_that_fails_leaves_nothing_to_load(backend: AheadOfTime) -> None:
    with pytest.raises(Exception, match=r"(?i)guard|data-dependent|unbacked"):
        backend.make("broken", StaticFunction(broken, "broken"), [torch.ones(2)])
    assert [path for path in backend.folder.iterdir() if path.suffix != ".lock"] == []


def test_the_key_depends_on_the_available_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    before = aot._digest("c++", "source", COUNT, example())
    monkeypatch.setattr(aot, "native_operators", lambda: ["ringkv::another"])
    assert aot._digest("c++", "source", COUNT, example()) != before


def test_the_compiler_of_graphs_ends_with_this_process(tmp_path: Path) -> None:
    compiler = slow_compiler.save(tmp_path)
    backend = AheadOfTime(tmp_path / "graphs", str(compiler), "source", lambda name: None)
    started = Path(backend._variables("work")["CXX"])
    assert started == script(str(compiler), tmp_path / "compilers")  # tests/machine/test_tethered.py kills its parent
    assert subprocess.run([started, "--version"], capture_output=True, text=True, check=True).stdout == "slow 1.0\n"
