"""Options of `ringkv serve` that let one process prefill and another decode."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from ringkv.base.checks import check, one_of
from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.cli.options import option
from ringkv.handoff.address import Address
from ringkv.plan.auto_policy import as_worker
from ringkv.plan.options import AUTO, Options

LISTEN = "127.0.0.1:7070"
ROLES = ("both", "prefill", "decode")

_role = partial(option, "Prefill apart from decode")


@dataclass(frozen=True)
class RoleOptions:
    role: Annotated[
        str,
        _role(
            "--role",
            "ROLE",
            "both (default); decode answers requests and lets --prefill workers prefill their prompts; prefill is such "
            "a worker, without HTTP. Both need the same secret in RINGKV_RANKS_KEY.",
        ),
    ] = "both"
    prefill: Annotated[
        str | None, _role("--prefill", "HOST:PORT", "Of role decode: its prefill workers, with commas between them.")
    ] = None
    listen: Annotated[
        str | None,
        _role("--listen", "HOST:PORT", "Of role prefill: where it listens for decode workers; 127.0.0.1:7070."),
    ] = None

    def check(self, models: int, machines: int, names_address: bool) -> None:
        """Raise InvalidRequest for options that do not belong together.

        models, machines: how many there are. names_address: an address for HTTP is given.
        """
        check([one_of("--role", self.role, ROLES)])
        role = f"--role {self.role}"
        for is_wrong, text in (
            (self.role != "both" and models > 1, f"{role} serves one model and {models} are given; give one --model"),
            (self.role != "both" and machines > 1, f"{role} runs on one machine; leave out --nnodes"),
            (self.role == "prefill" and names_address, f"{role} has no HTTP; give --listen, not --host or --port"),
            (self.role == "decode" and not self.prefill, f"{role} has no prefill worker; give --prefill HOST:PORT"),
            (self.role != "decode" and self.prefill, "--prefill is for --role decode; add that, or leave it out"),
            (self.role != "prefill" and self.listen, "--listen is for --role prefill; add that, or leave it out"),
        ):
            if is_wrong:
                raise InvalidRequest(text, "role")
        _ = self.address, self.workers  # refuse what is no address
        if self.role != "both":
            from ringkv.wire.handshake import key

            key("role")

    def adapted(self, options: Options) -> Options:
        """Return the options of an engine of this role. A decode worker has no use for lanes and a prefix store.

        `kv_policy auto` with a budget is snapstream with equal heads, whose prefixes are the smallest.
        """
        if self.role == "both":
            return options
        options = as_worker(options)
        if self.role == "prefill":
            return options
        store = 0 if options.prefix_store == AUTO and options.kv_turns != "continue" else options.prefix_store
        return replace(options, lanes=1, prefix_store=store)

    def decoding(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration of a decode worker's engine, which stages no prompt; that of both is unchanged."""
        if self.role != "decode":
            return config
        return replace(config, prefill=self.workers, staged_tokens=config.chunk)

    @property
    def address(self) -> Address:
        """Where a prefill worker listens."""
        return Address.parse(self.listen or LISTEN, "--listen")

    @property
    def workers(self) -> tuple[str, ...]:
        """The addresses of the prefill workers."""
        addresses = self.prefill.split(",") if self.prefill else ()
        return tuple(str(Address.parse(address, "--prefill")) for address in addresses)
