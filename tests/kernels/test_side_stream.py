"""The stream beside the current one: what waits for what, with streams that note it. No device is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ringkv.kernels.gpu import side_stream

DEVICE = torch.device("cuda", 0)


class Stream:
    """Notes what it runs and what it waits for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.events += 1
        return f"{self.name} {self.events}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


class OnGPU(torch.Tensor):
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


def tensor() -> torch.Tensor:
    return torch.empty(1).as_subclass(OnGPU)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    current = Stream("main", noted)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        noted.append(f"on {stream.name}")
        yield
        noted.append(f"off {stream.name}")

    monkeypatch.setattr(side_stream, "_OWN", side_stream._Own())
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream("side", noted))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return noted


def test_a_fork_waits_for_its_inputs_and_a_join_for_the_fork(log: list[str]) -> None:
    output, read = tensor(), tensor()
    side_stream.join(output)
    with side_stream.fork(output, read):
        log.append("work")
    (own,) = side_stream._OWN.forks.values()
    assert own.inputs == (read,)
    side_stream.join(output)
    side_stream.join(output)
    assert log == ["side waits for main", "on side", "work", "off side", "main waits for side 1"]
    assert not side_stream._OWN.forks


def test_a_layer_does_not_wait_for_the_pages_of_the_next_one(log: list[str]) -> None:
    layers = [tensor() for _ in range(4)]
    for at, layer in enumerate(layers):
        if at + 1 < len(layers):
            with side_stream.fork(layers[at + 1]):
                pass
        side_stream.join(layer)
    waits = [line for line in log if line.startswith("main")]
    assert waits == ["main waits for side 1", *(f"main waits for side {at}" for at in (1, 2, 3))]
    assert not side_stream._OWN.forks


def test_what_no_fork_is_known_to_write_waits_for_all(log: list[str]) -> None:
    """As if a graph had given attention a copy."""
    outputs = [tensor() for _ in range(2)]
    for one in outputs:
        with side_stream.fork(one):
            pass
    side_stream.join(tensor())
    assert [line for line in log if line.startswith("main")] == ["main waits for side 1", "main waits for side 2"]
