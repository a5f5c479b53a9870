"""Graphs that another process compiles, against plain calls; and what happens if they cannot be compiled."""

import logging
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

from ringkv.engine import functions
from ringkv.graphs import aot, background
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.background import Background, _Compiler, _serve, _Swapped
from ringkv.graphs.graph import StaticFunction
from ringkv.machine.compiler import find_compiler, missing_for_graphs
from ringkv.models.config import load_config
from ringkv.models.decoder import Decoder
from tests.engine import tiny

pytestmark = [
    pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs())),
    pytest.mark.timeout(900),
]


def scaled(factor: float, x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    seen.add_(1)
    return (torch.softmax(x * factor, -1),)


def branching(x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    return (x if x.sum() > 0 else -x,)


def example(rows: int = 3) -> list[Tensor]:
    return [torch.randn(rows, 8)[:, 2:], torch.zeros(1)]  # with strides


def serve(*call: Any) -> None:
    """Compile graphs at the usual priority, so that a busy machine does not hold the test up."""
    background.NICE = 0
    _serve(*call)


@pytest.fixture(autouse=True)
def same_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the other process; earlier tests may have loaded kernels here."""
    monkeypatch.setattr(aot, "native_operators", list)


@pytest.fixture
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_serve", serve)


@pytest.fixture
def backend(tmp_path: Path) -> Background:
    return Background(ahead(tmp_path), partial(torch.set_flush_denormal, False))


def ahead(folder: Path) -> AheadOfTime:
    compiler = find_compiler()
    assert compiler is not None
    return AheadOfTime(folder, compiler.path, "source", lambda name: pytest.fail("compiled in this process"))


@pytest.mark.slow
@pytest.mark.usefixtures("usual_priority")
def test_a_graph_runs_at_once_and_is_replaced_when_it_is_compiled(
    backend: Background, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    function = StaticFunction(partial(scaled, 2.0), "scaled", dynamic={1: (0,)})
    graph = backend.make("f", function, example())
    x, seen = example()
    assert torch.equal(graph([x, seen])[0], torch.softmax(x * 2, -1))
    backend.start()
    calls = 1
    while backend._thread.is_alive():
        torch.testing.assert_close(graph([x, seen])[0], torch.softmax(x * 2, -1))  # of either: it is replaced any time
        calls += 1
        backend.join(0.2)
    assert backend.builds == 1
    torch.testing.assert_close(graph([x, seen])[0], torch.softmax(x * 2, -1))
    assert seen.item() == calls + 1
    assert "compiling 1 graphs" in caplog.text

    again = Background(ahead(tmp_path), partial(pytest.fail, "another process was started"))
    torch.testing.assert_close(again.make("f", function, example())([x, seen])[0], torch.softmax(x * 2, -1))
    again.start()
    assert again.builds == 0


@pytest.mark.slow  # compiles graphs in a process
def test_a_graph_that_cannot_be_compiled_stays_a_plain_call(
    backend: Background, caplog: pytest.LogCaptureFixture
) -> None:
    graph = backend.make("broken", StaticFunction(branching, "branching"), example())
    backend.start()
    backend.join()
    x, seen = example()
    assert torch.equal(graph([x, seen])[0], x if x.sum() > 0 else -x)
    assert "broken could not be compiled" in caplog.text


def test_a_compiling_process_that_ends_leaves_plain_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = Background(ahead(tmp_path), partial(exit, 3))
    graph = backend.make("f", StaticFunction(partial(scaled, 2.0), "scaled"), example())
    with caplog.at_level(logging.WARNING):
        backend.start()
        backend.join()
    x, seen = example()
    assert torch.equal(graph([x, seen])[0], torch.softmax(x * 2, -1))
    assert "process has ended" in caplog.text


@pytest.mark.slow  # compiles graphs in a process
def test_a_compiling_process_ends_at_once_with_an_engine_that_ignores_sigterm(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with _Compiler(ahead(tmp_path), partial(torch.set_flush_denormal, False)) as compiler:
            with pytest.raises(RuntimeError, match="could not be compiled"):  # it serves
                compiler.compile(_Swapped("broken", StaticFunction(branching, "branching"), example()))
            compiler._process.terminate()
            compiler._process.join()
            assert compiler._process.exitcode == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def note_lock(path: Path) -> None:
    path.write_text(f"{type(tqdm.get_lock()).__module__} {os.nice(0)}")


@pytest.mark.slow  # compiles graphs in a process
def test_a_compiling_process_that_ends_with_its_engine_leaves_no_semaphore_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "is_exiting", lambda: True)
    backend = Background(ahead(tmp_path), partial(note_lock, tmp_path / "lock"))
    backend.make("broken", StaticFunction(branching, "branching"), example())
    backend.start()
    backend.join()
    lock, priority = (tmp_path / "lock").read_text().split()
    assert lock == "_thread"  # else of multiprocessing, which makes a semaphore
    assert int(priority) == min(os.nice(0) + background.NICE, 19)
    assert "graphs run uncompiled" not in caplog.text


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_an_engines_functions_can_be_sent_to_another_process(tmp_path: Path, family: str) -> None:
    tiny.save(tmp_path, family)
    decoder = Decoder(load_config(tmp_path), torch.float32, torch.device("cpu"))
    names = ("final_norm", "embed" if decoder.config.tied_embeddings else "head")
    x, norm, vocabulary = (torch.randn(*rows, decoder.config.hidden_size) for rows in ((3,), (), (9,)))
    head = functions.head(decoder, names)
    layers = [
        made
        for kind in decoder.layers
        for made in (
            functions.pass_layer(decoder, kind, names, None),
            functions.pass_layer(decoder, kind, names, "plain"),
            functions.decode_layer(decoder, kind, names, "plain"),
        )
    ]
    sent = pickle.loads(pickle.dumps([head, *layers]))
    assert [one.key for one in sent] == [one.key for one in [head, *layers]]
    assert len({one.key for one in sent}) == len(sent)
    assert torch.equal(sent[0].body(x, norm, vocabulary)[0], head.body(x, norm, vocabulary)[0])
