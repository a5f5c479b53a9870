"""Members: ranks other than the first, as processes that it has started and as those that connect to it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import AuthenticationError, SpawnProcess
from multiprocessing.reduction import send_handle

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress
from ringkv.base.ranks import Rank
from ringkv.machine.exit_status import described
from ringkv.ranks import rendezvous
from ringkv.ranks.follower import main
from ringkv.ranks.links import Link, LinkClosed
from ringkv.ranks.messages import Hello, Welcome


@dataclass(frozen=True)
class Member:
    """One rank. process: None if another machine runs it."""

    index: int
    link: Link
    process: SpawnProcess | None

    @property
    def sentinel(self) -> int | Connection:
        """What is ready once the rank has ended, if it has nothing to say."""
        return self.process.sentinel if self.process else self.link.connection

    def ending(self) -> str:
        """Return how the rank has ended."""
        if self.process is None:
            return "has closed its connection"
        self.process.join()
        return described(self.process.exitcode)


def started(config: EngineConfig, descriptor: int | None, patience: float) -> Iterator[Member]:
    """Start the other ranks of the first machine. descriptor: of the memory that they share, if they do."""
    for index in range(1, config.rank.count // config.nodes.count):
        ours, theirs = get_context("spawn").Pipe()
        own = replace(config, rank=Rank(index, config.rank.count))
        process = get_context("spawn").Process(target=main, args=(theirs, own, patience), name=f"ringkv-rank-{index}")
        process.start()
        theirs.close()
        assert process.pid is not None
        if descriptor is not None:
            send_handle(ours, descriptor, process.pid)
        yield Member(index, Link(ours), process)


def accepted(config: EngineConfig, tell: Progress) -> Iterator[Member]:
    """Wait until the ranks of other machines have connected. Raises InvalidRequest if one has other options."""
    awaited = set(range(config.rank.count // config.nodes.count, config.rank.count))
    if not awaited:
        return
    with rendezvous.listener(config.nodes) as listener:
        while awaited:
            tell(0, 0, f"waiting for {len(awaited)} ranks at {config.nodes.address}:{config.nodes.port + 1}")
            try:
                link = Link(listener.accept())
                hello = link.receive()
            except (AuthenticationError, LinkClosed, OSError):
                continue  # not one of ours
            if not isinstance(hello, Hello) or hello.rank not in awaited:
                link.connection.close()
                continue
            if hello.fingerprint != rendezvous.fingerprint(config):
                message = f"rank {hello.rank} has another model or other options; start all machines with the same ones"
                link.send(Welcome(message))
                raise InvalidRequest(message, "node_rank")
            link.send(Welcome())
            awaited.remove(hello.rank)
            yield Member(hello.rank, link, None)
