"""running: the requests of a step, as each of vLLM's model runners has them. Nothing here waits for a device."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Running(Protocol):
    """The requests of the rows of a step."""

    def names(self, common: Any) -> Sequence[str]:
        """Return the id of each row's request. Rows after those are padding, as all rows of a profiling step are."""

    def prompt(self, name: str) -> int:
        """Return the prompt tokens of a request."""

    def extra(self, name: str) -> Mapping[str, Any] | None:
        """Return the `extra_args` of a request's sampling parameters."""


class FirstRunner(NamedTuple):
    """The requests of vLLM's first model runner, which the CPU has."""

    runner: Any

    def names(self, common: Any) -> Sequence[str]:
        return self.runner.input_batch.req_ids

    def prompt(self, name: str) -> int:
        batch = self.runner.input_batch
        return int(batch.num_prompt_tokens[batch.req_id_to_index[name]])

    def extra(self, name: str) -> Mapping[str, Any] | None:
        return _extra(self.runner.requests[name].sampling_params)


class SecondRunner(NamedTuple):
    """The requests of its second model runner, which forgets sampling parameters: the worker notes their settings."""

    runner: Any
    settings: dict[str, Mapping[str, Any] | None]

    def names(self, common: Any) -> Sequence[str]:
        names = self.runner.req_states.index_to_req_id
        indices = [] if common.req_idx is None else common.req_idx.tolist()
        return [names[index] for index in indices if index in names]

    def prompt(self, name: str) -> int:
        states = self.runner.req_states
        return int(states.prompt_len.np[states.req_id_to_index[name]])

    def extra(self, name: str) -> Mapping[str, Any] | None:
        return self.settings.get(name)

    def note(self, scheduled: Any) -> None:
        """Note the settings of the requests that a scheduler's output begins, and forget those that it ends."""
        for name in scheduled.finished_req_ids:
            self.settings.pop(name, None)
        for request in scheduled.scheduled_new_reqs:
            self.settings[request.req_id] = _extra(request.sampling_params)


def _extra(params: Any) -> Mapping[str, Any] | None:
    return params.extra_args if params else None
