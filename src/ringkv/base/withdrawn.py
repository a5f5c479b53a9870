"""What users may still type although it was removed, with what to use instead and the measurement that decided it.

A remedy follows "SETTING VALUE was removed; ..." or "SETTING was removed; ...". It names settings with underscores;
the command line writes them as flags. Whoever removes a value or a setting adds its row here, and nothing else.
`base.checks.refusal` reads the values, for every check that a value is one of several. `removed` reads the settings,
for the fields of requests, the arguments of `LLM`, the flags and the configuration file.
"""

from collections.abc import Mapping

_INSTEAD_OF_FP8 = (
    "choose int8, which decodes 27% more tokens per second (SmolLM2-135M, AVX-512), loses less, and takes 3% more bytes"
)
WITHDRAWN_VALUES: Mapping[tuple[str, str], str] = {
    ("kv_format", "fp8"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e4m3"): _INSTEAD_OF_FP8,
    ("kv_format", "fp8_e5m2"): _INSTEAD_OF_FP8,
    ("kv_format", "turbo4"): (
        "choose int4, which decodes 11% more tokens per second (Llama-3.1-8B, H200), loses less, takes 2% more bytes"
    ),
    ("kv_heads", "adaptive"): (
        "choose profile, which scored 90.6 where adaptive scored 57.8 (16 RULER prompts of 4k, half kept, the question "
        "comes later), or equal, which lost 0.6 points where adaptive lost 1.6 (124 LongBench prompts, a quarter kept, "
        "both Qwen2.5-Coder-1.5B)"
    ),
    ("kv_heads", "pyramid"): (
        "choose equal, which lost 0.6 points where pyramid lost 3.4 (Qwen2.5-Coder-1.5B, 124 LongBench prompts, a "
        "quarter kept)"
    ),
    ("kv_select", "expected"): (
        "choose snapkv, which found 90.0% of 30 hard needles where expected found 18.3%, and scored 30.5 on 97 "
        "LongBench prompts where expected scored 29.8 (Qwen2.5-Coder-1.5B, a quarter kept, a window of 64)"
    ),
    ("kv_policy", "h2o"): (
        "choose snapstream, which solved 47% of 30 GSM8K problems in 192 entries where h2o solved 23% "
        "(Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "reselect"): (
        "choose snapstream, which solved 47% of 30 GSM8K problems in 192 entries where reselect solved 33% "
        "(Qwen2.5-Coder-1.5B)"
    ),
    ("kv_policy", "triattention"): (
        "choose snapstream, which solved 47.5% of 40 GSM8K problems in 192 entries where triattention solved 30% "
        "(Qwen2.5-Coder-1.5B)"
    ),
}
"""Remedies by setting and value."""

WITHDRAWN_SETTINGS: Mapping[str, str] = {
    "kv_unread": (
        "leave it out: 30 questions about 140 UUIDs scored 73.3 with the estimate and 70.0 without it, which is within "
        "the interval (Qwen2.5-Coder-1.5B, a quarter kept), and the estimate made a decode step 5% longer "
        "(SmolLM2-135M, Intel with AMX)"
    ),
    "kv_digest": (
        "leave it out: pages are selected by the mean of distances, as in ArkVale's paper, and no study has found "
        "bounds of keys better"
    ),
    "kv_read": (
        "choose kv_policy arkvale, which keeps every token and reads some pages in each step, or a smaller kv_budget: "
        "no study has found that reading a part of compressed slots is better than either"
    ),
    "kv_prefetch": (
        "leave it out: prefetching made a decode step 12% (Qwen2.5-Coder-1.5B) to 15% (SmolLM2-135M) longer when the "
        "files of kv_tier were in memory (Intel with AMX)"
    ),
    "kv_pages_by": (
        "leave it out: each key-value head selects its own pages, which hold 0.3 to 0.7 points more of the attention "
        "than pages selected for all heads of a layer (SmolLM2-135M and Qwen2.5-Coder-1.5B)"
    ),
    "kv_weigh": (
        "leave it out: 124 LongBench prompts lost 0.6 points with unweighted votes and 0.7 points with votes that were "
        "weighted by the values, which is within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "kv_reading": (
        "leave it out: scissorhands evicts the entries that got the most low weights, and no study has found another "
        "rule better"
    ),
    "kv_domain": (
        "leave it out: 97 LongBench prompts scored 30.7 with votes normalised over the candidates and 30.4 with votes "
        "normalised over the causal row, which is within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "kv_groups": (
        "leave it out: 97 LongBench prompts scored 31.4 with the maximum over query heads and 30.4 with their mean, "
        "which is within the interval (Qwen2.5-Coder-1.5B, a quarter kept)"
    ),
    "profile": "wrap torch's profiler around `ringkv.LLM`, as CONTRIBUTING.md shows",
}
"""Remedies by setting."""


def removed(setting: str) -> str | None:
    """Return the sentence that refuses a removed setting; None for any other name."""
    remedy = WITHDRAWN_SETTINGS.get(setting)
    return remedy and f"{setting} was removed; {remedy}"
