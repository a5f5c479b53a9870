"""prefix_store: whether the prefix store is large enough for a block, and for a conversation's next turn."""

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK
from ringkv.models.config import ModelConfig
from ringkv.plan.engine_footprint import staged_token_bytes
from ringkv.plan.footprint import Footprint
from ringkv.plan.units import show_bytes


def refuse_small_store(config: ModelConfig, engine: EngineConfig, need: Footprint) -> None:
    """Raise InvalidRequest if it is too small. need: what the engine needs in all."""
    block = BLOCK * staged_token_bytes(config, engine) * engine.rank.count
    if 0 < engine.store_bytes < block:
        raise InvalidRequest(
            f"prefix_store is {show_bytes(engine.store_bytes)}, less than a block of {BLOCK} tokens, "
            f"{show_bytes(block)}; raise it or set it to 0",
            "prefix_store",
        )
    of_entries = engine.capacity * staged_token_bytes(config, engine) * engine.rank.count
    slot = of_entries if engine.tier else need.slot  # which leaves out what is there
    if engine.kv.turns == "continue" and need.store < -(-slot // block) * block:
        raise InvalidRequest(
            f"kv_turns continue stores a slot of {show_bytes(slot)} for each conversation, and "
            f"prefix_store is {show_bytes(engine.store_bytes)}; raise prefix_store, or leave kv_turns out",
            "prefix_store",
        )
