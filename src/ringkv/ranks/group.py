"""Group: all ranks but the first, as the first one sees them."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.util import Finalize

from ringkv.base.config import EngineConfig
from ringkv.base.engine import RankBytes
from ringkv.base.failure import revive
from ringkv.base.progress import Progress
from ringkv.base.ranks import RankEnded
from ringkv.ranks import rendezvous
from ringkv.ranks.members import Member, accepted, end, started
from ringkv.ranks.messages import CODEC, Built, RankMessage, Stop
from ringkv.wire.handshake import key
from ringkv.wire.link import LinkClosed

log = logging.getLogger(__name__)


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
        """Wait until every rank is ready; return the bytes of each. Raises the error of one that is not."""
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
        """Return the reply of each rank after the first to a verb that has one. Raises RankEnded.

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
        ended = watched[wait(list(watched))[0]]  # type: ignore[index]
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
