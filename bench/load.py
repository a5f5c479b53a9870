"""Load: the same requests through an engine alone, and through a server.

Clients are numbered; each sends its next text when its last is answered.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import IO, Any

Texts = Sequence[Sequence[str]]  # of each client, in order


@dataclass(frozen=True)
class Engine:
    """What both are started with."""

    model: str
    slots: int
    budget: int
    prompt_tokens: int
    threads: int | None  # None: one for each CPU of the affinity mask

    @property
    def flags(self) -> list[str]:
        flags = {"--model": self.model, "--slots": self.slots, "--kv-budget": self.budget}
        flags |= {"--max-prompt": self.prompt_tokens} | ({"--threads": self.threads} if self.threads else {})
        return [word for flag, value in flags.items() for word in (flag, str(value))]


class Alone:
    """The engine in a process of its own, without HTTP or texts."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._ask({"ready": True})

    def run(self, texts: Texts, answer: int) -> float:
        """Seconds until all is answered; tokenising is not counted."""
        return float(self._ask({"texts": texts, "answer": answer}))

    def _ask(self, question: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def alone(engine: Engine, environment: Mapping[str, str]) -> Iterator[Alone]:
    with _process([sys.executable, "-m", "bench.load", *engine.flags], environment) as process:
        yield Alone(process)


class Served:
    """`ringkv serve` and its clients, which are threads of this process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.pid, self._port = process.pid, _port(process.stdout)

    def run(self, texts: Texts, answer: int) -> float:
        """Seconds until all is answered, every token streamed."""
        started = time.perf_counter()
        with ThreadPoolExecutor(len(texts)) as clients:
            counts = list(clients.map(lambda mine: [self._ask(text, answer) for text in mine], texts))
        assert counts == [[answer] * len(mine) for mine in texts], "an answer fell short"
        return time.perf_counter() - started

    def _ask(self, text: str, answer: int) -> int:
        """How many events came."""
        body = {"prompt": text, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True}
        connection = HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200, response.read()
            return sum(line.startswith(b"data: {") for line in response)


@contextmanager
def served(engine: Engine, environment: Mapping[str, str]) -> Iterator[Served]:
    command = [
        str(Path(sys.executable).parent / "ringkv"),
        "serve",
        *engine.flags,
        "--prefix-store",
        "0",
        "--port",
        "0",
    ]
    with _process(command, environment) as process:
        yield Served(process)


@contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _port(said: IO[str]) -> int:
    for line in said:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise RuntimeError("the server ended before it was ready; what it wrote says why")


def texts(model: str, clients: int, lengths: Sequence[int]) -> list[list[str]]:
    """Stretches of real text of about so many tokens, one of each length for each client, no two alike."""
    from bench.peers.workload import prompts
    from ringkv.residency.locate import locate
    from ringkv.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(locate(model))
    stretches = map(iter, prompts(tokenizer, clients, sum(lengths)))
    return [[tokenizer.decode(list(islice(stretch, length))) for length in lengths] for stretch in stretches]


def main() -> None:
    """The engine alone: a question a line on stdin, an answer a line on stdout."""
    from ringkv.cli.options import EngineOptions
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.resolve import resolve
    from ringkv.residency.locate import locate
    from ringkv.text.tokenizer import Tokenizer

    asked = _arguments()
    folder = locate(asked.model)
    options = EngineOptions(
        kv_budget=asked.kv_budget, prompt_tokens=asked.max_prompt, threads=asked.threads, slots=asked.slots
    ).options()
    engine, tokenizer = build(resolve(folder, load_config(folder), options, available_bytes())), None
    for line in sys.stdin:
        question = json.loads(line)
        tokenizer = tokenizer or Tokenizer.from_directory(folder)
        if "texts" not in question:
            print("null", flush=True)
            continue
        prompts = [[tokenizer.encode(text) for text in mine] for mine in question["texts"]]
        print(run_alone(engine, prompts, question["answer"]), flush=True)


def run_alone(engine: Any, prompts: Sequence[Sequence[Sequence[int]]], answer: int) -> float:
    """Seconds until each client's prompts, one after the other, are answered."""
    from ringkv.base.events import Failed, Finished
    from ringkv.base.request import Request
    from ringkv.base.sampling import SamplingParams
    from ringkv.scheduler.loop import Loop

    loop, sampling = Loop(engine), SamplingParams(max_tokens=answer, ignore_eos=True)
    queues = {f"{client}": iter(mine) for client, mine in enumerate(prompts)}
    started = time.perf_counter()
    free = list(queues)
    while free or not loop.idle:
        for client in free:
            if (tokens := next(queues[client], None)) is not None:
                loop.submit(Request(client, tuple(tokens), sampling))
        events = loop.step()
        assert not any(isinstance(event, Failed) for event in events), events
        free = [event.request_id for event in events if isinstance(event, Finished)]
    return time.perf_counter() - started


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("--slots", "--kv-budget", "--max-prompt", "--threads"):
        parser.add_argument(name, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
