"""Members: ranks other than the first, which it starts on its machine, and which connect to it from others."""

from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import send_handle
from socket import socketpair

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import Progress
from ringkv.machine.exit_status import described
from ringkv.ranks import placement, rendezvous
from ringkv.ranks.follower import main
from ringkv.ranks.messages import link_of
from ringkv.wire.handshake import Hello, Refused, admit, key
from ringkv.wire.link import InvalidMessage, Link, LinkClosed

GRACE = 5.0  # seconds in which a rank may end by itself


@dataclass(frozen=True)
class Member:
    """One rank. process: None if another machine runs it."""

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
        yield Member(index, link_of(ours), process)


def accepted(config: EngineConfig, tell: Progress) -> Iterator[Member]:
    """Wait until the ranks of other machines have connected. Raises InvalidRequest if one has other options."""
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
            except Refused as error:
                if error.hello.rank in awaited:
                    raise InvalidRequest(error.reason, "node_rank") from error
                continue
            except (InvalidRequest, InvalidMessage, LinkClosed, OSError):
                continue  # not a rank
            awaited.remove(hello.rank)
            yield Member(hello.rank, link, None)
