"""A prefill worker in a thread, and decode loops beside it; what tests of both share."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine
from ringkv.base.events import Event, Token
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.decode_loop import DecodeLoop
from ringkv.handoff.fingerprint import fingerprint
from ringkv.handoff.listener import Listener
from ringkv.handoff.prefill_peers import PrefillPeers
from ringkv.handoff.prefill_worker import PrefillWorker
from ringkv.handoff.shape import PrefixShape
from ringkv.scheduler.loop import Loop

SECRET = b"a secret of 24 characters"
ANY = Address("127.0.0.1", 0)


@dataclass
class Prefilling:
    """A prefill worker. It serves only in `step`, because kernels of two engines must not run at once in a process."""

    worker: PrefillWorker
    listener: Listener

    @property
    def address(self) -> Address:
        return self.listener.address


@contextmanager
def prefilling(engine: Engine, config: EngineConfig, secret: bytes = SECRET, at: Address = ANY) -> Iterator[Prefilling]:
    name = fingerprint(config)
    listener, worker = Listener(at, secret, name), PrefillWorker(engine, name)
    listener.start(worker.deliver)
    try:
        yield Prefilling(worker, listener)
    finally:
        listener.close()


@contextmanager
def peers(config: EngineConfig, *addresses: Address, secret: bytes = SECRET) -> Iterator[PrefillPeers]:
    found = PrefillPeers(addresses, secret, fingerprint(config), PrefixShape.of(config))
    try:
        yield found
    finally:
        found.close()


@contextmanager
def decoding(engine: Engine, config: EngineConfig, *addresses: Address, **options) -> Iterator[DecodeLoop]:
    """A decode loop that is connected to all workers."""
    with peers(config, *addresses) as found:
        until(lambda: found.connected == len(addresses))
        yield DecodeLoop(engine, found, **options)


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: time.sleep(0.005)) -> None:
    """Act until the condition holds. Fails after ten seconds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        act()


def run(loop: Loop, groups: Sequence[Sequence[Request]], *prefilling: Prefilling) -> list[Event]:
    """Submit groups of requests that share a prompt, and serve them to their end."""
    events = [event for group in groups for event in loop.submit(*group)]

    def act() -> None:
        for one in prefilling:
            one.worker.step()
        step(loop, events)

    until(lambda: not has_requests(loop), act)
    return events


def has_requests(loop: Loop) -> bool:
    stats = loop.stats()
    return bool(stats.waiting or stats.prefilling or stats.running)


def step(loop: Loop, events: list[Event]) -> None:
    if loop.idle:
        time.sleep(0.001)
    events += loop.step()


def tokens(events: Sequence[Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, Token):
            found.setdefault(event.request_id, []).append(event.token)
    return found


def ends(events: Sequence[Event]) -> dict[str, Event]:
    """Each request's last event."""
    return {event.request_id: event for event in events}
