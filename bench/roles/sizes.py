"""sizes: the bytes of a transfer, counted at the socket, and those of the formula."""

import json
import time
from statistics import median

from bench.results import Figure
from bench.roles.surroundings import BUDGET, PrefillProcess, Setting, request
from ringkv.base.kv import KVChoice
from ringkv.handoff.address import Address
from ringkv.handoff.handshake import dialled
from ringkv.handoff.identity import Identity
from ringkv.handoff.link import Link
from ringkv.handoff.messages import Ask, Prefix, Received
from ringkv.ranks.rendezvous import key
from ringkv.residency.locate import locate

PROMPTS = (16, 100, 900, 3000)
CHOICES = (KVChoice("snapstream", budget=BUDGET), KVChoice("streaming", budget=256), KVChoice("snapkv", budget=512))


def run(setting: Setting) -> Figure:
    prefill = PrefillProcess(setting)
    try:
        link = dialled(Address.parse(prefill.address), key(), Identity.of(setting.config(1)))
        try:
            found = [
                _transfer(link, setting.model, number, length, kv)
                for number, (length, kv) in enumerate((length, kv) for length in PROMPTS for kv in CHOICES)
            ]
        finally:
            link.close()
    finally:
        prefill.close()
    return {
        "part": "sizes",
        "transfers": len(found),
        "wrong_transfers": sum(got != due for got, due, _ in found),
        "most_bytes": max(got for got, _, _ in found),
        "transfer_s": median(seconds for _, _, seconds in found),
    }


def _transfer(link: Link, model: str, number: int, length: int, kv: KVChoice) -> tuple[int, int, float]:
    """Return the raw bytes of a transfer, those of the formula, and the seconds from its header to its end."""
    link.send(Ask(number, request(f"size-{number}", length, 1, kv)))
    header = link.receive()
    assert isinstance(header, Prefix), header
    began = time.perf_counter()
    raw = bytearray(header.entries + header.logits)
    link.receive_into(memoryview(raw))
    seconds = time.perf_counter() - began
    link.send(Received(number))
    return len(raw), due(model, header), seconds


def due(model: str, header: Prefix) -> int:
    """Return the bytes that config.json and the live entries give: keys and values in bfloat16, logits in float32."""
    config = json.loads((locate(model) / "config.json").read_text())
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    entry = config["num_hidden_layers"] * config["num_key_value_heads"] * width * 2 * 2
    (layout,) = header.layouts
    return (
        min(layout.protected + header.seen - layout.base, layout.protected + layout.ring) * entry
        + 4 * config["vocab_size"]
    )
