"""serve: the loop of every worker, and the interface of a measured engine. Standard library only.

    {"do": "load", "model": path, "options": {...}}       -> {"facts": {...}}
    {"do": "begin", "prompts": [[id, ...], ...]}          -> {"first_s": [...], "tokens": [[id, ...], ...]}
    {"do": "steps", "count": 8}                           -> {"laps_s": [...], "tokens": [[id, ...], ...]}
    {"do": "keep", "requests": 4}                         -> {}                drops all but the last 4 prompts
    {"do": "end"}                                         -> {"rss_bytes": n, "facts": {...}}   drops all requests

`first_s` is the time of each request's first token, in seconds since all were submitted. A failure is {"error": text}.
Only replies go to standard output; output of libraries goes to standard error.
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

IDLE_STEPS = 10_000  # steps without a token after which the engine counts as hung


class ServedEngine(Protocol):
    """One loaded engine. A request's id is its index in the prompts of the last `submit`."""

    def submit(self, prompts: list[list[int]]) -> None:
        """Add requests that decode greedily, past end-of-text tokens, until they are dropped."""
        ...

    def step(self) -> Iterable[tuple[int, int]]:
        """Run one step and return its tokens as (request, token)."""
        ...

    def drop(self, requests: Iterable[int]) -> None:
        """End these requests and free their memory."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return "version", "cache_bytes" if known, and other facts for the journal."""
        ...


Load = Callable[[str, Mapping[str, Any]], ServedEngine]


def serve(load: Load) -> None:
    reply_with(Session(load))


def reply_with(session: object) -> None:
    """Reply to commands with the session's methods of their names, until standard input is closed."""
    die_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_reply(session, json.loads(line))), file=replies, flush=True)
    os._exit(0)  # skips slow threads and destructors of libraries


def die_with_parent() -> None:
    """End this process with its parent, because a stopped process does not see its input close."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _reply(session: object, command: dict[str, Any]) -> dict[str, Any]:
    verb = command.pop("do")
    try:
        reply: dict[str, Any] = getattr(session, verb)(**command)
        return reply
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
        dropped = sorted(self._active)[: len(self._active) - requests]
        self._engine.drop(dropped)
        self._active -= set(dropped)
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
        """Run steps until one returns tokens of active requests."""
        for _ in range(IDLE_STEPS):
            if made := [(request, token) for request, token in self._engine.step() if request in self._active]:
                return made
        raise RuntimeError(f"no token in {IDLE_STEPS} steps: a request ended early")


def peak_rss() -> int:
    """Return the peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
