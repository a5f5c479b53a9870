"""Values that users may still type although they were removed, with what to use instead and the measurement behind it.

A remedy follows "SETTING VALUE was removed; ...". `base.checks.refusal` reads them, for every check that a value is one
of several.
"""

from collections.abc import Mapping

_INSTEAD_OF_FP8 = (
    "choose int8, which decodes 27% more tokens per second (SmolLM2-135M, AVX-512), loses less, and takes 3% more bytes"
)


def _solved(share: str, other: str) -> str:
    return f"choose snapstream, which solved {share} GSM8K problems in 192 entries where {other} (Qwen2.5-Coder-1.5B)"


WITHDRAWN_VALUES: Mapping[tuple[str, str], str] = {
    ("kv_format", "fp8"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e4m3"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e5m2"): _INSTEAD_OF_FP8,
    ("kv_format", "turbo4"): (
        "choose int4, which decodes 11% more tokens per second (Llama-3.1-8B, H200), loses less, takes 2% more bytes"
    ),
    ("kv_heads", "adaptive"): (
        "choose equal, which lost 0.6 points where adaptive lost 1.6 (Qwen2.5-Coder-1.5B, 124 LongBench prompts, a "
        "quarter kept), or profile"
    ),
    ("kv_heads", "pyramid"): (
        "choose equal, which lost 0.6 points where pyramid lost 3.4 (Qwen2.5-Coder-1.5B, 124 LongBench prompts)"
    ),
    ("kv_select", "expected"): (
        "choose snapkv, which found 90.0% of 30 hard needles where expected found 18.3% (Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "h2o"): _solved("47% of 30", "h2o solved 23%"),
    ("kv_policy", "reselect"): _solved("47% of 30", "reselect solved 33%"),
    ("kv_policy", "triattention"): _solved("47.5% of 40", "triattention solved 30%"),
}
"""Remedies by setting and value."""
