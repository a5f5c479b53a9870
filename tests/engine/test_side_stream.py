"""The stream beside the current one: what waits for what, with streams that note it. No device is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ringkv.engine.side_stream import SideStream


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


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    current = Stream("main", noted)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        noted.append(f"on {stream.name}")
        yield
        noted.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream("side", noted))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return noted


def test_a_fork_waits_for_its_inputs_and_a_join_for_the_fork(log: list[str]) -> None:
    side, read = SideStream(torch.device("cuda", 0)), torch.empty(1)
    side.join(1)
    with side.fork(1, read):
        log.append("work")
    assert side._forks[1].inputs == (read,)
    side.join(1)
    side.join(1)
    assert log == ["side waits for main", "on side", "work", "off side", "main waits for side 1"]
    assert not side._forks


def test_a_layer_does_not_wait_for_the_pages_of_the_next_one(log: list[str]) -> None:
    side = SideStream(torch.device("cuda", 0))
    for layer in range(4):
        if layer < 3:
            with side.fork(layer + 1):
                pass
        side.join(layer)
        log.append(f"layer {layer}")
    order = [line for line in log if line.startswith(("main", "layer"))]
    waits = [[f"main waits for side {layer}", f"layer {layer}"] for layer in (1, 2, 3)]
    assert order == ["layer 0", *(line for pair in waits for line in pair)]
