"""settings: what `--additional-config` says under "ringkv", and what a request's `vllm_xargs` say.

    {"ringkv": {"kv_budget": 4096, "kv_recent": 0.25, "kv_select": "snapkv", "allow_full": true}}

The names are those of ringkv. A request may choose a smaller `kv_budget`, or `kv_policy` full if the server allows it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ringkv.base.budgets import check_budget
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.plan.kv_settings import changed

KEY, ALLOW_FULL, FULL = "ringkv", "allow_full", "full"
OF_SERVER = (
    "kv_policy",
    "kv_budget",
    "kv_sinks",
    "kv_recent",
    "kv_elastic",
    "kv_select",
    "kv_window",
    "kv_kernel",
    "kv_pooling",
)
OF_REQUEST = ("kv_policy", "kv_budget")
POLICIES = ("snapstream", "streaming")


class Settings(NamedTuple):
    """choice: of requests that choose nothing, with a budget. allow_full: whether a request may keep every token."""

    choice: KVChoice
    allow_full: bool = False

    @property
    def queries(self) -> int:
        """Tokens of a prompt's end that its last chunk must have: those whose queries vote."""
        return max(1, self.choice.select.queries)

    def of_request(self, extra: Mapping[str, Any] | None) -> KVChoice | None:
        """Return what a request keeps; None keeps every token. Raises InvalidRequest."""
        given = of_any_server(extra)
        if given.get("kv_policy") == FULL:
            if self.allow_full:
                return None
            raise InvalidRequest(
                f'kv_policy full is not allowed here; start the server with "{ALLOW_FULL}": true', "kv_policy"
            )
        choice = changed(self.choice, given)
        _check(choice)
        assert choice.budget is not None
        if choice.budget > (self.choice.budget or 0):
            raise InvalidRequest(
                f"kv_budget {choice.budget} is over the server's {self.choice.budget}; request less", "kv_budget"
            )
        return choice

    def of_admitted(self, extra: Mapping[str, Any] | None) -> KVChoice | None:
        """Return what a request keeps that was not checked: as much of what it asks for as the server allows."""
        try:
            return self.of_request(extra)
        except InvalidRequest:
            return self.choice


def of_any_server(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a request sets. Raises InvalidRequest for what no server takes."""
    given = {name: value for name, value in (extra or {}).items() if name.startswith("kv_")}
    for name in given.keys() - set(OF_REQUEST):
        raise InvalidRequest(f"{name} is set when the server starts; a request may set {', '.join(OF_REQUEST)}", name)
    if given.get("kv_policy") != FULL:
        choice = changed(KVChoice(), given)
        if choice.budget is not None:
            _check(choice)
    return given


def read(additional_config: Mapping[str, Any] | None) -> Settings | None:
    """Return the settings in vLLM's `additional_config`; None if it has none. Raises InvalidRequest."""
    given = (additional_config or {}).get(KEY)
    if given is None:
        return None
    kv = dict(given)
    allow_full = bool(kv.pop(ALLOW_FULL, False))
    for name in kv.keys() - set(OF_SERVER):
        raise InvalidRequest(f"{name} is not a setting of ringkv in vLLM; those are {', '.join(OF_SERVER)}", name)
    if kv.get("kv_budget") is None:
        raise InvalidRequest("kv_budget is missing; give the tokens that a request keeps, such as 4096", "kv_budget")
    choice = changed(KVChoice(), kv)
    _check(choice)
    return Settings(choice, allow_full)


def _check(choice: KVChoice) -> None:
    if choice.policy not in POLICIES:
        raise InvalidRequest(
            f"kv_policy {choice.policy} is not for vLLM's blocks; choose {' or '.join(POLICIES)}", "kv_policy"
        )
    if choice.select.prefills_twice:
        raise InvalidRequest(
            f"kv_select {choice.select.name} prefills a prompt twice, which vLLM's scheduler does not; choose snapkv",
            "kv_select",
        )
    assert choice.budget is not None
    check_budget(choice, choice.budget)
