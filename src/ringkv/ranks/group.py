"""Group: all ranks but the first, as the first rank sees them."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import send_handle
from multiprocessing.util import Finalize
from socket import socketpair

from ringkv.base.config import EngineConfig
from ringkv.base.engine import RankBytes
from ringkv.base.errors import InvalidRequest
from ringkv.base.failure import revive
from ringkv.base.progress import Progress
from ringkv.base.ranks import RankEnded
from ringkv.machine.exit_status import described
from ringkv.ranks import placement, rendezvous
from ringkv.ranks.follower import main
from ringkv.ranks.messages import ANY_SIZE, CODEC, Built, RankMessage, Stop, link_of
from ringkv.wire.handshake import Hello, OtherConfiguration, admit, key
from ringkv.wire.link import InvalidMessage, Link, LinkClosed

log = logging.getLogger(__name__)
GRACE = 5.0  # seconds in which a rank may end by itself


@dataclass(frozen=True)
class Member:
    """A rank other than the first. process: None if another machine runs it, and it has connected from there."""

    index: int
    link: Link
    process: SpawnProcess | None

    @property
    def sentinel(self) -> int | Link:
        """What `multiprocessing.connection.wait` returns once the rank has ended."""
        return self.process.sentinel if self.process else self.link

    def ending(self) -> str:
        """Return how the rank has ended."""
        if self.process is None:
            return "has closed its connection"
        self.process.join()
        return described(self.process.exitcode)


def end(process: SpawnProcess) -> None:
    """Wait until a process has ended. Kill it after GRACE seconds."""
    process.join(GRACE)
    process.kill()
    process.join()


def started(config: EngineConfig, descriptor: int | None, timeout: float) -> Iterator[Member]:
    """Start the other ranks of the first machine. descriptor: of the memory that they share; None over a network."""
    for index in config.nodes.local(config.rank.count)[1:]:
        ours, theirs = socketpair()
        placed = placement.of_rank(config, index)
        process = get_context("spawn").Process(target=main, args=(theirs, placed, timeout), name=f"ringkv-rank-{index}")
        process.start()
        theirs.close()
        assert process.pid is not None
        if descriptor is not None:
            send_handle(ours, descriptor, process.pid)
        yield Member(index, link_of(ours, ANY_SIZE), process)


def accepted(config: EngineConfig, tell: Progress) -> Iterator[Member]:
    """Wait until the ranks of other machines have connected. Raises InvalidRequest if a rank has other options."""
    awaited = set(range(config.rank.count)) - set(config.nodes.local(config.rank.count))
    if not awaited:
        return
    secret, fingerprint = key(rendezvous.PARAM), rendezvous.fingerprint(config)

    def refusal(hello: Hello) -> str:
        if hello.rank not in awaited:
            return f"rank {hello.rank} is connected already, or is none of this machine's"
        fits = hello.fingerprint == fingerprint
        return "" if fits else f"rank {hello.rank} has another model or other options; start all machines with the same"

    with rendezvous.listener(config.nodes) as listener:
        while awaited:
            tell(0, 0, f"waiting for {len(awaited)} ranks at {config.nodes.address}:{config.nodes.port + 1}")
            try:
                link, hello = admit(listener.accept()[0], secret, refusal, link_of, "a process that connected")
            except OtherConfiguration as error:
                if error.hello.rank in awaited:
                    raise InvalidRequest(error.reason, "node_rank") from error
                continue
            except (InvalidRequest, InvalidMessage, LinkClosed, OSError):
                continue  # not a rank
            awaited.remove(hello.rank)
            yield Member(hello.rank, link, None)


class Group:
    """Starts the ranks of this machine and awaits those of others; `close` ends them.

    on_end: called in a thread with the number of a rank that has ended.
    """

    on_end: Callable[[int], None] | None = None

    def __init__(self, config: EngineConfig, descriptor: int | None, timeout: float, tell: Progress) -> None:
        self._count, self._failure, self._is_closing = config.rank.count, "", False
        self._members: list[Member] = []
        self._finalize = Finalize(self, _end, args=(self._members,), exitpriority=10)
        if config.nodes.count > 1:
            key(rendezvous.PARAM)  # refuse its absence before a process starts
        try:
            self._members += started(config, descriptor, timeout)
            self._members += accepted(config, tell)
        except BaseException:
            self.close()
            raise

    def wait_until_built(self) -> list[RankBytes]:
        """Wait until every rank is ready; return the bytes of each. Raises the error of a rank that is not."""
        sizes = []
        for member in self._members:
            try:
                built = member.link.receive()
            except LinkClosed:
                raise RankEnded(f"rank {member.index} of {self._count} {member.ending()}; see its log") from None
            assert isinstance(built, Built)
            if built.failure:
                raise revive(built.failure)
            sizes.append(built.bytes)
        threading.Thread(target=self._watch, name="rank-watch", daemon=True).start()
        return sizes

    def send(self, message: RankMessage) -> None:
        """Send a message to every rank. Raises RankEnded."""
        encoded = CODEC.encode(message)
        for member in self._members:
            with suppress(LinkClosed):  # the watching thread finds out why
                member.link.send_bytes(encoded)
        self.check()

    def send_each(self, messages: Sequence[RankMessage]) -> None:
        """Send each rank after the first a message of its own, in order. Raises RankEnded."""
        for member, message in zip(self._members, messages, strict=True):
            with suppress(LinkClosed):
                member.link.send(message)
        self.check()

    def receive_each(self) -> list[bytearray]:
        """Return the reply of each rank after the first to a verb that has a reply. Raises RankEnded.

        Only for ranks of this machine: of others, `_watch` takes a message for their end.
        """
        try:
            return [member.link.receive_bytes() for member in self._members]
        except LinkClosed:
            self.check()
            raise RankEnded("a rank has closed its connection; see its log") from None

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine."""
        return all(member.process for member in self._members)

    def check(self) -> None:
        """Raise RankEnded, with its number and its status, if a rank has ended."""
        if self._failure:
            raise RankEnded(self._failure)

    def close(self) -> None:
        """End all ranks."""
        self._is_closing = True
        self._finalize()

    def _watch(self) -> None:
        watched = {member.sentinel: member for member in self._members}
        ended = watched[wait(list(watched))[0]]  # type: ignore[arg-type, index]
        if self._is_closing or not self._finalize.still_active():
            return
        self._failure = f"rank {ended.index} of {self._count} {ended.ending()}"
        log.error("%s", self._failure)
        if self.on_end:
            self.on_end(ended.index)


def _end(members: list[Member]) -> None:
    for member in members:
        with suppress(LinkClosed):
            member.link.send(Stop())
        member.link.close()
    for member in members:
        if member.process:
            end(member.process)
