from bench.page.fastest import fastest
from tests.bench.page.made import cell, made


def test_each_workload_names_its_fastest_engine() -> None:
    cells = [
        cell("ringkv", 7680, 8, kept=1920, decode_tps=300.0),
        cell("ringkv-full", 7680, 8, decode_tps=100.0),
        cell("vllm", 7680, 8, decode_tps=150.0),
        cell("ringkv", 512, 1, kept=128, decode_tps=40.0, prefill_tps=1000.0),
        cell("llama.cpp", 512, 1, weights="f16", decode_tps=50.0, prefill_tps=500.0),
    ]
    text = fastest(made(cells))
    assert "ringkv is fastest in 1 of 2 decode workloads" in text
    assert "| SmolLM2-135M, 8 x 7,680 | ringkv | 300 | 300 | vllm | 150 | 2.00x |" in text
    assert "| SmolLM2-135M, 1 x 512 | llama.cpp | 50 | 40 | llama.cpp | 50 | 0.80x |" in text
    assert "ringkv is fastest in 1 of 1 prefill workloads" in text


def test_nothing_measured_is_said() -> None:
    assert fastest(made()).startswith("Not measured")
