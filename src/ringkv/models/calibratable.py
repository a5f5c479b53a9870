"""calibratable: which models have statistics of their queries (`ringkv calibrate`). No torch."""

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.models.base import ModelConfig
from ringkv.models.layer import Attention
from ringkv.models.slot_formats import check_slot_format

CALIBRATED_SLOTS = SlotFormat(calibrated=True)


def refuse_uncalibratable(config: ModelConfig) -> None:
    """Raise InvalidRequest, naming what is in the way, unless statistics of queries say what a slot should keep."""
    check_slot_format(config, CALIBRATED_SLOTS)
    blocks = [config.layer(kind).attention for kind in config.kinds]
    if any(isinstance(block, Attention) and block.qk_norm == "after_rope" for block in blocks):
        raise InvalidRequest(
            f"kv_policy triattention is not implemented for queries that are normalised after rotation "
            f"({config.architecture}); choose kv_policy snapstream",
            "kv_policy",
        )
