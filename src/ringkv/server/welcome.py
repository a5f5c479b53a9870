"""welcome: the text shown when the server is ready."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ringkv.base.cache_spec import IN_HOST_MEMORY
from ringkv.base.engine import Limits
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import PageCounts
from ringkv.handoff.address import Address
from ringkv.plan.units import show_bytes
from ringkv.server.run.serving import LoadedModel
from ringkv.text.answers.tools import format_of


def welcome(
    models: Sequence[LoadedModel], address: tuple[Any, ...], scheme: str = "http", with_key: bool = False
) -> str:
    """Return the server's address, its fixed cache memory, its page and an example request.

    address: of the listening socket. with_key: the server asks for an API key.
    """
    root = f"{scheme}://{Address(str(address[0]), address[1])}"
    url = f"{root}/v1"
    first = models[0]
    return "\n".join(
        (
            *(_served_at(model, url) for model in models),
            f"page: open {root}/ in a browser",
            "stop: Ctrl-C",
            f"try: {curl(url, first.names[0], first.template is not None, with_key)}",
        )
    )


def _served_at(model: LoadedModel, url: str) -> str:
    kv, limits = model.engine.default_kv, model.engine.limits
    lines = [
        f"{model.names[0]} is served at {url}",
        f"cache: {show_cache(limits)}",
        f"policy: {kv.policy}, {_budget(kv, limits)}{f' (auto: {model.kv_why})' if model.kv_why else ''}",
        f"sampler: {show_bytes(limits.sampler_bytes)} besides the cache, for logits and penalties",
    ]
    if limits.tier_bytes:
        lines.append(_tier(limits))
    if model.template and format_of(model.template.source) is None:
        lines.append("tools: refused, because ringkv does not read this model's format of calls")
    if size := limits.prefill_workspace:
        lines.append(
            f"workspace: prompts over {size:,} tokens are compressed while prefilled, to {size:,} entries at most"
        )
    return "\n".join(lines)


def _budget(kv: KVChoice, limits: Limits) -> str:
    budget = kv.budget or limits.capacity
    if kv.policy != "arkvale":
        return f"budget {budget:,}"
    read = PageCounts.of_choice(replace(kv, budget=budget), limits.page).most * limits.page
    return f"budget {budget:,}: a step reads {min(read, limits.capacity):,} of a slot's {limits.capacity:,} entries"


def _tier(limits: Limits) -> str:
    """Return the line about entries that are in files, or in the host's memory beside a GPU."""
    each, ranks = limits.tier_bytes, len(limits.rank_bytes)
    first = f" of the first of {ranks} ranks" if ranks else ""
    where = "host: {} of pinned memory" if limits.tier == IN_HOST_MEMORY else f"files: {{}} on disk in {limits.tier}"
    return f"{where.format(show_bytes(limits.slots * each))}{first}, {show_bytes(each)} per slot"


def show_cache(limits: Limits) -> str:
    of_rank = "" if limits.slot_ranks == 1 else f"{limits.slots // limits.slot_ranks} of "
    slots = f"{of_rank}{limits.slots} {'slot' if limits.slots == 1 else 'slots'} of {limits.capacity:,} entries"
    slots += "" if limits.kv_format == "plain" else f" in {limits.kv_format}"
    ranks = len(limits.rank_bytes)
    total = sum(rank.held for rank in limits.rank_bytes)
    return (f"{show_bytes(total)} on {ranks} ranks; on the first, " if ranks else "") + (
        f"{show_bytes(limits.held_bytes)} reserved: {show_bytes(limits.slots_bytes)} in {slots}, "
        f"{show_bytes(limits.staging_bytes)} in staging, {show_bytes(limits.store_bytes)} in the prefix store"
    )


def curl(url: str, name: str, chats: bool, with_key: bool) -> str:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    chat: tuple[str, dict[str, Any]] = ("chat/completions", question)
    endpoint, body = chat if chats else ("completions", {"prompt": "The sea is"})
    data = shlex.quote(json.dumps({"model": name, **body, "temperature": 0}))
    key = ' -H "Authorization: Bearer $RINGKV_API_KEY"' if with_key else ""
    return f"curl {url}/{endpoint} -H 'Content-Type: application/json'{key} -d {data}"
