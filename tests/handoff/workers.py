"""A prefill worker in a thread, and decode loops beside it; what tests of both share."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import toy

from ringkv.base.cache_spec import CacheSpec, LayerGroup
from ringkv.base.engine import Engine
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.handoff.address import Address
from ringkv.handoff.decode_loop import DecodeLoop
from ringkv.handoff.identity import Identity
from ringkv.handoff.listener import Listener
from ringkv.handoff.prefill_peers import PrefillPeers
from ringkv.handoff.prefill_worker import PrefillWorker
from ringkv.handoff.shape import PrefixShape
from ringkv.ranks.packets import PacketParts
from ringkv.scheduler.loop import Loop

SECRET = b"a secret of 24 characters"
TOY_RUNS = Identity("toy")
ANY = Address("127.0.0.1", 0)


TOY = PrefixShape(
    PacketParts((LayerGroup((0,), CacheSpec.grouped(1, 5), 1),), item=1, ranks=1, capacity=64), toy.MODULUS
)
"""The shape of a toy engine's prefixes: an entry has 2 planes of 5 elements of a byte."""


@dataclass
class Prefilling:
    """A prefill worker. It serves only in `step`, so that a test decides when."""

    worker: PrefillWorker
    listener: Listener

    @property
    def address(self) -> Address:
        return self.listener.address

    def step(self) -> None:
        self.worker.step()


@contextmanager
def prefilling(engine: Engine, name: str = "toy", at: Address = ANY, settings=None, **options) -> Iterator[Prefilling]:
    """name, settings: of its identity. options: of the worker."""
    listener, worker = Listener(at, SECRET, Identity(name, settings or {})), PrefillWorker(engine, name, **options)
    listener.start(worker.deliver)
    try:
        yield Prefilling(worker, listener)
    finally:
        listener.close()


@contextmanager
def decoding(
    engine: Engine, *addresses: Address, name: str = "toy", shape: PrefixShape = TOY, **options
) -> Iterator[DecodeLoop]:
    """A decode loop that is connected to all workers. options: of the loop."""
    loop = DecodeLoop(engine, PrefillPeers(addresses, SECRET, Identity(name), shape), **options)
    try:
        until(lambda: loop._peers.connected == len(addresses))
        yield loop
    finally:
        loop.close()


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: time.sleep(0.005)) -> None:
    """Act until the condition holds. The test's time limit ends one that never does."""
    while not condition():
        act()


def run(loop: Loop, groups: Sequence[Sequence[Request]], *prefilling: Prefilling) -> list[Event]:
    """Submit groups of requests that share a prompt, and serve them to their end."""
    events = [event for group in groups for event in loop.submit(*group)]

    def act() -> None:
        for one in prefilling:
            one.step()
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


def ends(events: Sequence[Event]) -> dict[str, Finished | Failed]:
    """Each request's end."""
    return {event.request_id: event for event in events if isinstance(event, Finished | Failed)}


def running(loop: DecodeLoop) -> int:
    return loop.stats().running
