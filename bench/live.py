"""live: what watchers of /ringkv/live cost a server that decodes.

    python -m bench.live            8 streams with 0 and 4 watchers in turns: about three minutes

Each round measures both, the order changes from round to round, and the cost is the median of the rounds. It must be
under 2%.
"""

import argparse
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Thread

from bench.load import EngineSettings, Served, Texts, served

WATCHERS = 4
BOUND = 0.02  # of the throughput
PROMPT = "The sea is never quite still. "
REQUEST = b"GET /ringkv/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Round:
    """Tokens per second without and with watchers."""

    alone: float
    watched: float

    @property
    def cost(self) -> float:
        """The share of the throughput that is lost."""
        return 1 - self.watched / self.alone


@contextmanager
def watching(port: int) -> Iterator[Callable[[], int]]:
    """Read the events of a stream. Yields what returns the bytes that have come."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(REQUEST)
        counted = [len(connection.recv(1 << 16))]
        reader = Thread(target=_read, args=(connection, counted), daemon=True)
        reader.start()
        try:
            yield lambda: counted[0]
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


def _read(connection: socket.socket, counted: list[int]) -> None:
    while received := connection.recv(1 << 16):
        counted[0] += len(received)


def throughput(server: Served, texts: Texts, answer: int, watchers: int) -> float:
    """Return the tokens per second of all streams together."""
    with ExitStack() as stack:
        bytes_of = [stack.enter_context(watching(server.port)) for _ in range(watchers)]
        before = [count() for count in bytes_of]
        seconds = server.run(texts, answer)
        assert all(count() > began for count, began in zip(bytes_of, before, strict=True)), "a watcher saw nothing"
    return sum(map(len, texts)) * answer / seconds


def measure(run: Callable[[int], float], rounds: int) -> list[Round]:
    """Return the rounds of a `run`, which takes the number of watchers and returns the tokens per second."""
    found = []
    for number in range(rounds):
        order = (0, WATCHERS) if number % 2 == 0 else (WATCHERS, 0)
        speeds = {watchers: run(watchers) for watchers in order}
        found.append(Round(speeds[0], speeds[WATCHERS]))
    return found


def shown(found: Sequence[Round]) -> str:
    costs = [one.cost for one in found]
    alone, watched = median(one.alone for one in found), median(one.watched for one in found)
    verdict = "under" if median(costs) < BOUND else "NOT under"
    return (
        f"{alone:,.0f} tokens/s without a watcher, {watched:,.0f} with {WATCHERS}, over {len(found)} rounds\n"
        f"ratio {1 - median(costs):.4f} (rounds {1 - max(costs):.4f} to {1 - min(costs):.4f}): "
        f"a cost of {100 * median(costs):.2f}%, {verdict} {100 * BOUND:g}%"
    )


def main() -> None:
    args = _arguments()
    engine = EngineSettings(args.model, args.streams, args.budget, 1024, args.threads)
    texts = [[f"{number} {PROMPT}"] for number in range(args.streams)]
    with served(engine, os.environ) as server:
        server.run(texts, 16)  # warms up
        time.sleep(1)
        print(shown(measure(lambda watchers: throughput(server, texts, args.tokens, watchers), args.rounds)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
