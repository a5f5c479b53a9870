from typing import Any
from xml.etree import ElementTree

from bench.report.traffic import picture, traffic
from bench.results import ResultRow
from tests.bench.report.made import measured

SVG = "{http://www.w3.org/2000/svg}"


def cell(engine: str, **figures: Any) -> dict[str, Any]:
    return {"model": "smollm2", "workload": "short", "engine": engine, "settings": "s", "shrink": 1, **figures}


def waiting(engine: str, tokens: float, first: float, clients: int = 16) -> dict[str, Any]:
    return cell(engine, clients=clients, tokens_per_s=tokens, ttft_p99_s=first)


def offered(engine: str, per_minute: int, goodput: float) -> dict[str, Any]:
    return cell(engine, per_minute=per_minute, goodput=goodput)


def lines(rows: list[ResultRow]) -> list[str]:
    return [line for line in traffic(rows).splitlines() if line.startswith("| SmolLM2")]


def test_throughput_and_the_slowest_first_tokens_are_beside_those_of_the_best_other_engine() -> None:
    rows = measured("traffic", waiting("ringkv", 900, 1.25), waiting("vllm", 300, 0.5), waiting("openvino", 600, 2.0))
    assert lines(rows) == [
        "| SmolLM2-135M | short, 16 clients | tokens/s | 900 | 300 |  | 600 | 1.50x |",
        "| SmolLM2-135M | short, 16 clients | first token, p99 | 1.25 s | 0.50 s |  | 2.00 s |  |",
    ]


def test_an_engine_counts_with_its_faster_setting() -> None:
    rows = measured("traffic", waiting("llama.cpp", 200, 1.0), waiting("llama.cpp-unified", 250, 3.0))
    assert [line.split(" | ")[5] for line in lines(rows)] == ["250", "3.00 s"]


def test_goodput_is_the_best_of_all_rates() -> None:
    ours = (offered("ringkv", 60, 1.0), offered("ringkv", 120, 1.8))
    rows = measured("traffic", *ours, offered("vllm", 60, 0.9), offered("vllm", 120, 0.2))
    assert lines(rows) == ["| SmolLM2-135M | short | best goodput, requests/s | 1.80 | 0.90 |  |  | 2.00x |"]


def test_a_trace_has_a_line_for_each_scale_of_its_lengths_in_any_order_of_runs() -> None:
    shrunk = [{**offered(engine, 60, 1.0), "shrink": by} for engine in ("ringkv", "vllm") for by in (8, 4)]
    assert [line.split(" | ")[1:5] for line in lines(measured("traffic", *shrunk))] == [
        [f"short, lengths / {by}", "best goodput, requests/s", "1.00", "1.00"] for by in (4, 8)
    ]


def test_only_the_newest_run_of_a_load_counts() -> None:
    rows = measured("traffic", waiting("ringkv", 100, 1.0), waiting("vllm", 900, 1.0), run="1")
    rows += measured("traffic", waiting("ringkv", 200, 1.0), run="2")
    rows += measured("traffic", waiting("ringkv", 300, 1.0, clients=64), run="0")
    assert [line.split(" | ")[3:5] for line in lines(rows)][::2] == [["200", ""], ["300", ""]]


def test_the_picture_has_a_line_for_each_engine_and_a_panel_for_each_workload_with_two_rates() -> None:
    code = [{**one, "workload": "azure-code"} for one in (offered("ringkv", 60, 1.0), offered("ringkv", 90, 1.5))]
    alone = {**offered("ringkv", 60, 1.0), "workload": "mooncake"}
    nothing = [{**one, "workload": "servegen"} for one in (offered("vllm", 60, 0.0), offered("vllm", 90, 0.0))]
    rows = measured("traffic", offered("ringkv", 60, 1.0), offered("ringkv", 120, 1.8), offered("vllm", 60, 0.9), *code)
    found = ElementTree.fromstring(picture(rows + measured("traffic", alone, *nothing)))
    titles = [one.text for one in found.iter(f"{SVG}text") if one.text and one.text.startswith("SmolLM2")]
    assert titles == ["SmolLM2-135M, azure-code (Intel, AMX)", "SmolLM2-135M, short (Intel, AMX)"]
    points = len(list(found.iter(f"{SVG}circle")))
    assert points == 2 + 2 + 3  # the legend, and each measured rate


def test_a_run_without_rates_gives_an_empty_picture() -> None:
    found = ElementTree.fromstring(picture(measured("traffic", waiting("ringkv", 100, 1.0))))
    assert list(found.iter(f"{SVG}circle")) == []
