"""fields: single values of a parsed config.json, each with its type and bounds checked. No torch.

A file from the internet may have any type in any place. Each function raises BadWeights that names field and value.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown

Raw = Mapping[str, Any]
"""A parsed JSON object."""


class Refusal(NamedTuple):
    """A setting that must be absent, or have a value that changes nothing or is supported."""

    setting: str
    is_harmless: Callable[[Any], bool]
    supported: str

    def allows(self, value: Any) -> bool:
        """Return whether a value is harmless; one of another type than the setting has is not."""
        try:
            return self.is_harmless(value)
        except (TypeError, AttributeError, KeyError):
            return False


LARGEST = {  # far beyond published models, and small enough that sizes of a model stay below 2 ** 63
    "num_hidden_layers": 2048,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    **dict.fromkeys(("head_dim", "global_head_dim", "num_global_key_value_heads"), 1 << 14),
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
    "vocab_size_per_layer_input": 1 << 24,
    "hidden_size_per_layer_input": 1 << 14,
    "moe_intermediate_size": 1 << 22,
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "top_k_experts", "moe_topk"),
        1 << 12,
    ),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 1 << 14),
    "n_shared_experts": 1 << 8,
    "altup_num_inputs": 1 << 8,
    "laurel_rank": 1 << 14,
}
LARGEST_COUNT = 1 << 30  # of other fields, such as lengths in tokens
LARGEST_ID = (1 << 31) - 1
MOST_IDS = 1000  # end tokens
MOST_DECIMALS = 1 << 14  # of a list, such as one for each pair of a head
SMALLEST_DECIMAL, LARGEST_DECIMAL = 1e-30, 1e30  # beyond these, float32 overflows when it multiplies or divides


def count(raw: Raw, key: str, default: int | None = None) -> int:
    """Return a positive integer, which may be written as 8192.0; null in the file means the default."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        _refuse(key, value, "a positive number is needed")
    if value > (largest := LARGEST.get(key, LARGEST_COUNT)):
        _refuse(key, value, f"ringkv reads up to {largest:,}")
    return value


def with_defaults(raw: Raw, defaults: Raw) -> dict[str, Any]:
    """Return settings with `defaults` for those that are missing, and for those of them that are null."""
    return {**defaults, **{name: value for name, value in raw.items() if value is not None or name not in defaults}}


def optional_count(raw: Raw, key: str) -> int:
    """Return an integer of at least 0; 0 if the file has none."""
    return 0 if raw.get(key) in (None, 0) else count(raw, key)


def decimal(raw: Raw, key: str, default: float | None, above: float = SMALLEST_DECIMAL) -> float:
    """Return a finite number greater than `above`; null in the file means the default."""
    value = raw.get(key)
    value = default if value is None else value
    # Integers are compared before they become a float, which raises OverflowError for a long one.
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= LARGEST_DECIMAL:
        _refuse(key, value, f"a number above {above:g} and up to {LARGEST_DECIMAL:g} is needed")
    return float(value)


def optional_decimal(raw: Raw, key: str) -> float | None:
    """Return a finite number of at least 0; None if the file has none."""
    value = raw.get(key)
    return None if value is None else 0.0 if value == 0 and value is not False else decimal(raw, key, None)


def decimals(raw: Raw, key: str) -> tuple[float, ...]:
    """Return a list of numbers above 0."""
    value = raw.get(key)
    if not isinstance(value, list) or not 0 < len(value) <= MOST_DECIMALS:
        _refuse(key, value, "a list of numbers is needed")
    return tuple(decimal({key: number}, key, None) for number in value)


def flag(raw: Raw, key: str, default: bool = False) -> bool:
    """Return true or false; null in the file means the default."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool) and value not in (0, 1):
        _refuse(key, value, "true or false is needed")
    return default if value is None else bool(value)


def table(raw: Raw, key: str) -> Raw:
    """Return an object, empty if the file has none."""
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        _refuse(key, value, "an object is needed")
    return value


def texts(raw: Raw, key: str) -> list[str]:
    """Return a list of strings, empty if the file has none."""
    value = raw.get(key) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        _refuse(key, value, "a list of strings is needed")
    return value


def ids(*files: tuple[Raw, str]) -> tuple[int, ...]:
    """Return the token ids of a field in several files, each once; some files have null or -1 for none."""
    return tuple(dict.fromkeys(id for raw, key in files for id in _ids(raw, key)))


def _ids(raw: Raw, key: str) -> list[int]:
    value = raw.get(key)
    every = value if isinstance(value, list) else [] if value is None else [value]
    if len(every) > MOST_IDS or not all(type(id) is int and -1 <= id <= LARGEST_ID for id in every):
        _refuse(key, value, "a token id, or a list of them, is needed")
    return [id for id in every if id >= 0]


def _refuse(key: str, value: Any, needed: str) -> NoReturn:
    raise BadWeights(f"config.json has {key} {shown(value)}, {needed}; fetch config.json again")
