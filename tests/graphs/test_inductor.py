"""The GPU's backend with Inductor's code for the CPU: the arithmetic around attention is the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ringkv.engine import build as module
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.graphs.graph import StaticFunction
from ringkv.graphs.inductor import Inductor
from ringkv.machine.compiler import missing_for_graphs
from ringkv.machine.folders import cache_dir
from tests.engine import tiny

if missing := missing_for_graphs():
    pytest.skip(f"graphs cannot be compiled: {missing}", allow_module_level=True)

pytestmark = pytest.mark.slow
PROMPT = list(range(3, 150))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.save(path, "Llama")
    return path


@pytest.fixture(scope="module")
def compiled(folder: Path) -> Iterator[LocalEngine]:
    """Inductor's compiled code is kept between runs, as for users; traces are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))
        patch.setattr(module, "_backend", lambda *_: Inductor(cache_dir() / "inductor", lambda name: None))
        yield build(tiny.config(folder))
    torch.compiler.reset()


def test_it_gives_the_tokens_of_plain_calls(compiled: LocalEngine, folder: Path) -> None:
    plain = build(tiny.config(folder))
    answers = []
    for engine in (plain, compiled):
        tiny.enter(engine, tiny.request(PROMPT, temperature=0.8, top_k=40, seed=3, logprobs=2), slot=1)
        answers.append(tiny.decode(engine, 30, slot=1))
    assert answers[0][0] == answers[1][0]
    torch.testing.assert_close(answers[0][1], answers[1][1], atol=1e-4, rtol=1e-4)


def test_everything_is_compiled_before_the_first_request(compiled: LocalEngine) -> None:
    requests: list[tuple[int, dict[str, float]]] = [(5, {}), (100, {"repetition_penalty": 1.2}), (150, {"top_p": 0.9})]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n, sampling in requests:
            tiny.enter(compiled, tiny.request(PROMPT[:n], temperature=1.0, **sampling))
            tiny.decode(compiled, 4)


def test_arguments_that_share_memory_are_refused(folder: Path) -> None:
    """torch would copy a written argument, a whole cache, in every step."""
    both = torch.zeros(2, 4)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.add_(y),)

    with pytest.raises(AssertionError, match="overlap"):
        Inductor(folder, print).make("add", StaticFunction(function, "function"), [both[0], both[1]])
