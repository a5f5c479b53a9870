"""ringkv: the engine and the loop that the server runs. Options: `slots`, and fields of `plan.options.Options`."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.peers.workers.serve import serve
from ringkv.base.errors import RingKVError
from ringkv.base.events import Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.version import VERSION
from ringkv.machine.environment import spin_briefly

spin_briefly()

from ringkv.engine.build import build  # noqa: E402  # loads torch, and OpenMP reads its spin count
from ringkv.models.config import load_config  # noqa: E402
from ringkv.plan.memory import available_bytes  # noqa: E402
from ringkv.plan.options import Options  # noqa: E402
from ringkv.plan.resolve import resolve  # noqa: E402
from ringkv.scheduler.loop import Loop  # noqa: E402

ENDLESS = SamplingParams(max_tokens=10**9, ignore_eos=True)


class RingKV:
    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self._config = resolve(Path(model), load_config(Path(model)), _options(options), available_bytes())
        self._engine = build(self._config)
        self._loop = Loop(self._engine)

    def submit(self, prompts: list[list[int]]) -> None:
        for place, tokens in enumerate(prompts):
            for event in self._loop.submit(Request(str(place), tuple(tokens), ENDLESS)):
                self._checked(event)

    def step(self) -> Iterable[tuple[int, int]]:
        events = map(self._checked, self._loop.step())
        return [(int(event.request_id), event.token) for event in events]

    def drop(self, requests: Iterable[int]) -> None:
        for request in requests:
            self._loop.cancel(str(request))

    def facts(self) -> Mapping[str, Any]:
        limits = self._engine.limits
        return {
            "version": VERSION,
            "cache_bytes": limits.held_bytes,
            "capacity": limits.capacity,
            "weight_bytes": self._engine.weight_bytes,
            "threads": self._config.threads,
        }

    def _checked(self, event: Token | Finished | Failed) -> Token:
        if isinstance(event, Token):
            return event
        raise RuntimeError(event.message if isinstance(event, Failed) else f"the request ended ({event.reason})")


def _options(options: Mapping[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    if unknown := sorted(set(options) - known):
        raise RingKVError(f"this ringkv has no option {', '.join(unknown)}")
    return Options(**options)


if __name__ == "__main__":
    serve(RingKV)
