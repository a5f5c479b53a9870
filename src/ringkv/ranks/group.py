"""Group: the processes of all ranks but the first, seen from the first."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import send_handle
from multiprocessing.util import Finalize

from ringkv.base.config import EngineConfig
from ringkv.base.failure import Failure, revive
from ringkv.base.ranks import Rank
from ringkv.machine.exit_status import described
from ringkv.ranks.follower import main
from ringkv.ranks.links import CODEC, Link, LinkClosed
from ringkv.ranks.messages import Built, RankMessage, Stop

log = logging.getLogger(__name__)

GRACE = 5.0  # seconds in which a rank may end by itself


class RankEnded(RuntimeError):
    """A rank has ended, so that no request can be served any more."""


class Group:
    """Starts the processes; `close` ends them. on_end: called in a thread with the number of a rank that has ended."""

    on_end: Callable[[int], None] | None = None

    def __init__(self, config: EngineConfig, descriptor: int, patience: float) -> None:
        count, self._failure = config.rank.count, ""
        self._is_closing = False
        self._ranks = [
            _started(replace(config, rank=Rank(index, count)), descriptor, patience) for index in range(1, count)
        ]
        self._finalize = Finalize(self, _end, args=(self._ranks,), exitpriority=10)
        threading.Thread(target=self._watch, name="rank-watch", daemon=True).start()

    def wait_until_built(self) -> None:
        """Wait until every rank is ready. Raises the error of one that is not."""
        for index, (_, link) in enumerate(self._ranks, 1):
            try:
                built = link.receive()
            except LinkClosed:
                raise RankEnded(self._failure or f"rank {index} ended while it started; see its log") from None
            assert isinstance(built, Built)
            if built.kind:
                raise revive(Failure(built.kind, built.message))

    def send(self, message: RankMessage) -> None:
        """Send a message to every rank. Raises RankEnded."""
        encoded = CODEC.encode(message)
        for _, link in self._ranks:
            try:
                link.send_bytes(encoded)
            except LinkClosed:
                break
        self.check()

    def check(self) -> None:
        """Raise RankEnded, with its number and its status, if a rank has ended."""
        if self._failure:
            raise RankEnded(self._failure)

    def close(self) -> None:
        """End all ranks."""
        self._is_closing = True
        self._finalize()

    def _watch(self) -> None:
        sentinels = {process.sentinel: index for index, (process, _) in enumerate(self._ranks, 1)}
        ended = wait(list(sentinels))
        if self._is_closing or not self._finalize.still_active():
            return
        index = sentinels[ended[0]]  # type: ignore[index]
        process = self._ranks[index - 1][0]
        process.join()
        self._failure = f"rank {index} of {len(self._ranks) + 1} {described(process.exitcode)}"
        log.error("%s (process %s)", self._failure, process.pid)
        if self.on_end:
            self.on_end(index)


def _started(config: EngineConfig, descriptor: int, patience: float) -> tuple[SpawnProcess, Link]:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(
        target=main, args=(theirs, config, patience), name=f"ringkv-rank-{config.rank.index}"
    )
    process.start()
    theirs.close()
    assert process.pid is not None
    send_handle(ours, descriptor, process.pid)
    return process, Link(ours)


def _end(ranks: list[tuple[SpawnProcess, Link]]) -> None:
    for _, link in ranks:
        with suppress(LinkClosed):
            link.send(Stop())
        link.connection.close()
    for process, _ in ranks:
        process.join(GRACE)
        process.kill()
        process.join()
