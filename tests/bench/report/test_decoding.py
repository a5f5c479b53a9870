from typing import Any

from bench.report.decoding import kv_format
from bench.results import latest
from tests.bench.report.made import measured


def figure(model: str, tokens: int, seconds: float) -> dict[str, Any]:
    sizes = {"tokens": tokens, "format": "int8", "entry_bytes": 12_240}
    return {"model": model, **sizes, "attend_s": seconds, "attend_ratio": 1.5, "perplexity": 20.0, "more": 0.0}


def test_a_run_with_more_tokens_replaces_an_older_run_of_its_model_only() -> None:
    rows = measured("kv_format", figure("smollm2", 512, 2e-3), run="1")
    rows += measured("kv_format", figure("qwen2.5-coder-1.5b", 512, 3e-3), run="2")
    rows += measured("kv_format", figure("smollm2", 4096, 1e-3), run="3")
    lines = [line for line in kv_format(latest(rows)).splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[3] for line in lines] == ["3.00 ms", "1.00 ms"]


def test_a_run_of_one_part_replaces_that_part_only() -> None:
    whole = figure("smollm2", 512, 2e-3)
    later = {name: value for name, value in whole.items() if name not in ("attend_s", "attend_ratio")}
    rows = measured("kv_format", whole, run="1") + measured("kv_format", later | {"more": 0.01}, run="2")
    (line,) = [line for line in kv_format(latest(rows)).splitlines() if "int8" in line]
    assert line.endswith("| 12,240 | 2.00 ms | 1.50x | +1.00% |")
