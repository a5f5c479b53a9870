"""load: the same requests through an engine alone, and through a server.

Each client sends its next text when its last is answered.
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
from typing import IO, Any, Protocol

Texts = Sequence[Sequence[str]]  # the texts of each client, in order


class HasFlags(Protocol):
    """Settings of a server."""

    @property
    def flags(self) -> list[str]: ...


@dataclass(frozen=True)
class EngineSettings:
    """The settings of both the engine alone and the server."""

    model: str
    slots: int
    budget: int
    prompt_tokens: int
    threads: int | None  # None: one per CPU of the affinity mask

    @property
    def flags(self) -> list[str]:
        flags = {"--model": self.model, "--slots": self.slots, "--kv-budget": self.budget}
        flags |= {"--max-prompt": self.prompt_tokens} | ({"--threads": self.threads} if self.threads else {})
        return [part for flag, value in flags.items() for part in (flag, str(value))]


class Alone:
    """The engine in its own process, without HTTP or texts."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._call({"ready": True})

    def run(self, texts: Texts, answer: int) -> float:
        """Return the seconds until all texts are answered, without tokenisation."""
        return float(self._call({"texts": texts, "answer": answer}))

    def _call(self, command: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def alone(engine: EngineSettings, environment: Mapping[str, str]) -> Iterator[Alone]:
    with _process([sys.executable, "-m", "bench.load", *engine.flags], environment) as process:
        yield Alone(process)


class Served:
    """`ringkv serve` and its clients, which are threads of this process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.pid, self.port = process.pid, port_of(process.stdout)

    def run(self, texts: Texts, answer: int) -> float:
        """Return the seconds until all texts are answered, with every token streamed."""
        started = time.perf_counter()
        with ThreadPoolExecutor(len(texts)) as clients:
            counts = list(clients.map(lambda mine: [self._complete(text, answer) for text in mine], texts))
        assert counts == [[answer] * len(mine) for mine in texts], "an answer has fewer tokens than requested"
        return time.perf_counter() - started

    def _complete(self, text: str, answer: int) -> int:
        """Return the number of events received."""
        body = {"prompt": text, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True}
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200, response.read()
            return sum(line.startswith(b"data: {") for line in response)


@contextmanager
def served(engine: HasFlags, environment: Mapping[str, str]) -> Iterator[Served]:
    command = [
        *(sys.executable, "-m", "ringkv", "serve"),
        *engine.flags,
        "--prefix-store",
        "0",
        "--graphs",
        "compiled",
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


def port_of(output: IO[str]) -> int:
    for line in output:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise RuntimeError("the server ended before it was ready; see its output")


def texts(model: str, clients: int, lengths: Sequence[int]) -> list[list[str]]:
    """Return stretches of real text of about these token lengths, one of each length per client, all different."""
    from bench.peers.workload import prompts
    from ringkv.residency.locate import locate
    from ringkv.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(locate(model))
    stretches = map(iter, prompts(tokenizer, clients, sum(lengths)))
    return [[tokenizer.decode(list(islice(stretch, length))) for length in lengths] for stretch in stretches]


def main() -> None:
    """Serve the engine alone: one JSON command per line on stdin, one reply per line on stdout."""
    from ringkv.cli.options import EngineOptions
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.resolve import resolve
    from ringkv.residency.locate import locate
    from ringkv.text.tokenizer import Tokenizer

    args = _arguments()
    folder = locate(args.model)
    options = EngineOptions(
        kv_budget=args.kv_budget, prompt_tokens=args.max_prompt, threads=args.threads, slots=args.slots
    ).options()
    engine, tokenizer = build(resolve(folder, load_config(folder), options, available_bytes())), None
    for line in sys.stdin:
        command = json.loads(line)
        tokenizer = tokenizer or Tokenizer.from_directory(folder)
        if "texts" not in command:
            print("null", flush=True)
            continue
        prompts = [[tokenizer.encode(text) for text in mine] for mine in command["texts"]]
        print(run_alone(engine, prompts, command["answer"]), flush=True)


def run_alone(engine: Any, prompts: Sequence[Sequence[Sequence[int]]], answer: int) -> float:
    """Return the seconds until all prompts are answered; each client has one request at a time."""
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
