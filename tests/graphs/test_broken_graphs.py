"""Graphs whose files changed on disk are compiled again before anything is loaded."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.errors import BadCache
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import StaticFunction
from ringkv.kernels import built
from ringkv.machine.compiler import find_compiler, missing_for_graphs

pytestmark = pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))


def double(x: Tensor) -> tuple[Tensor, ...]:
    return (2 * x,)


def make(folder: Path) -> tuple[Tensor, int]:
    """Return what the graph makes of 1, and how many graphs were compiled."""
    compiler = find_compiler()
    assert compiler is not None
    backend = AheadOfTime(folder / "graphs", compiler.path, "source", lambda name: None)
    graph = backend.make("double", StaticFunction(double, "double"), [torch.ones(3)])
    return graph([torch.ones(3)])[0], backend.builds


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compilation after the first gives the first one's package: a test needs to know only that there was one."""
    compile, first = torch._inductor.aoti_compile_and_package, list[bytes]()

    def package(exported: object, package_path: str) -> str:
        if not first:
            first.append(Path(compile(exported, package_path=package_path)).read_bytes())
        Path(package_path).write_bytes(first[0])
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", package)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_once")
def test_an_empty_a_truncated_and_a_missing_graph_are_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make(tmp_path)[1] == 1
    library = next((tmp_path / "graphs").glob("*/graph.so"))
    whole = library.read_bytes()
    for content in (b"", whole[:-100], None):
        library.unlink()  # the mapped file of the loaded graph stays as it is
        if content is not None:
            library.write_bytes(content)
        result, builds = make(tmp_path)
        assert (result.tolist(), builds) == ([2.0] * 3, 1)
    assert make(tmp_path)[1] == 0

    monkeypatch.setattr(built, "unwritable", lambda _: "the disk is read-only")
    assert make(tmp_path)[1] == 0
    library.unlink()
    with pytest.raises(BadCache, match="read-only"):
        make(tmp_path)
