"""serve: the loop of every worker, and what an engine must do to be measured. Standard library only.

    {"do": "load", "model": path, "options": {...}}       -> {"facts": {...}}
    {"do": "begin", "prompts": [[id, ...], ...]}          -> {"first_s": [...], "tokens": [[id, ...], ...]}
    {"do": "steps", "count": 8}                           -> {"laps_s": [...], "tokens": [[id, ...], ...]}
    {"do": "keep", "requests": 4}                         -> {}                the last 4 prompts go on
    {"do": "end"}                                         -> {"rss_bytes": n, "facts": {...}}   forgets all requests

`first_s` is each request's first token, in seconds since all were handed over. Whatever fails is {"error": text}.
The answers have the process's first output stream to themselves: what libraries print goes to the error stream.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

IDLE_STEPS = 10_000  # so many steps without a token are a hang


class Served(Protocol):
    """One loaded engine. A request is known by its place in the prompts of the last `submit`."""

    def submit(self, prompts: list[list[int]]) -> None:
        """Take requests that go on, greedily and past the end of the text, until they are dropped."""
        ...

    def step(self) -> Iterable[tuple[int, int]]:
        """Do one thing; the tokens that came out, as (request, token)."""
        ...

    def drop(self, requests: Iterable[int]) -> None:
        """End these and free what they hold."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """ "version", and what else is worth keeping; "cache_bytes" where it is known."""
        ...


Load = Callable[[str, Mapping[str, Any]], Served]


def serve(load: Load) -> None:
    """Answer until nobody is there to ask."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(load)
    for line in sys.stdin:
        print(json.dumps(_answer(session, json.loads(line))), file=answers, flush=True)
    os._exit(0)  # libraries' threads and destructors take their time, and nothing is left to lose


def _die_with_parent() -> None:
    """A sleeping worker would not notice that nobody will wake it again."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _answer(session: "Session", said: dict[str, Any]) -> dict[str, Any]:
    verb = said.pop("do")
    try:
        answer: dict[str, Any] = getattr(session, verb)(**said)
        return answer
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


class Session:
    """One engine and its requests."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._active: set[int] = set()

    def load(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        self._engine = self._load(model, options)
        return {"facts": dict(self._engine.facts())}

    def begin(self, prompts: list[list[int]]) -> dict[str, Any]:
        first: dict[int, float] = {}
        tokens: list[list[int]] = [[] for _ in prompts]
        started = time.perf_counter()
        self._active = set(range(len(prompts)))
        self._engine.submit(prompts)
        while len(first) < len(prompts):
            for request, token in self._tokens():
                first.setdefault(request, time.perf_counter() - started)
                tokens[request].append(token)
        return {"first_s": [first[request] for request in range(len(prompts))], "tokens": tokens}

    def steps(self, count: int) -> dict[str, Any]:
        laps: list[float] = []
        tokens: list[list[int]] = [[] for _ in range(max(self._active) + 1)]
        last = time.perf_counter()
        for _ in range(count):
            self._one_token_each(tokens)
            now = time.perf_counter()
            laps.append(now - last)
            last = now
        return {"laps_s": laps, "tokens": tokens}

    def keep(self, requests: int) -> dict[str, Any]:
        gone = sorted(self._active)[: len(self._active) - requests]
        self._engine.drop(gone)
        self._active -= set(gone)
        return {}

    def end(self) -> dict[str, Any]:
        self.keep(0)
        return {"rss_bytes": peak_rss(), "facts": dict(self._engine.facts())}

    def _one_token_each(self, tokens: list[list[int]]) -> None:
        waiting = set(self._active)
        while waiting:
            for request, token in self._tokens():
                waiting.discard(request)
                tokens[request].append(token)

    def _tokens(self) -> list[tuple[int, int]]:
        """Steps until a token comes out."""
        for _ in range(IDLE_STEPS):
            if made := [(request, token) for request, token in self._engine.step() if request in self._active]:
                return made
        raise RuntimeError(f"no token in {IDLE_STEPS} steps: a request ended before it was told to")


def peak_rss() -> int:
    """Bytes, the most this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
