from xml.etree import ElementTree

from bench.report.peers import by_engine, engines, equal_memory, perplexity, throughput
from tests.bench.report.made import cell, cells, measured


def line(text: str, *begin: str) -> str:
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |")]
    return found


def test_each_engine_has_its_range_and_the_number_of_slower_cases() -> None:
    rows = cells(
        cell("ringkv", 512, 1, kept=128, decode_tps=40.0),
        cell("ringkv-full", 512, 1, decode_tps=30.0),
        cell("llama.cpp", 512, 1, weights="f16", decode_tps=50.0),
        cell("ringkv", 7680, 8, kept=1920, decode_tps=300.0),
        cell("llama.cpp", 7680, 8, weights="f16", decode_tps=100.0),
        cell("vllm", 7680, 8, decode_tps=150.0),
    )
    text = by_engine(rows)
    assert line(text, "decode, 16 bits", "llama.cpp") == (
        "| decode, 16 bits | llama.cpp | 0.80x to 3.00x (2), **slower in 1** |  |  |"
    )
    assert line(text, "decode, 16 bits", "vLLM") == "| decode, 16 bits | vLLM | 2.00x (1) |  |  |"
    assert "prefill" not in text
    assert "transformers" not in text


def test_fewer_bits_are_lines_of_their_own_beside_engines_that_keep_sixteen() -> None:
    rows = cells(
        cell("ringkv", 512, 1, weights="int8", decode_tps=90.0, prefill_tps=100.0),
        cell("llama.cpp", 512, 1, weights="q8_0", decode_tps=30.0, prefill_tps=200.0),
        cell("vllm", 512, 1, decode_tps=45.0),
    )
    text = by_engine(rows)
    assert "| decode, 8 bits | llama.cpp | 3.00x (1) |" in text
    assert "| decode, 8 bits | vLLM | 2.00x (1) |" in text
    assert "| prefill, 8 bits | llama.cpp | 0.50x (1), **slower in 1** |" in text
    assert "16 bits" not in text


def test_the_table_of_equal_bytes_has_peak_memory() -> None:
    equal = cells(
        cell("ringkv", 7680, 29, kept=1920, protocol="equal-bytes", decode_tps=400.0),
        cell("ringkv-full", 7680, 6, protocol="equal-bytes", decode_tps=100.0),
        cell("llama.cpp", 7680, 7, protocol="equal-bytes", decode_tps=25.0),
    )
    sizes = {"ringkv": 1_090_000_000, "ringkv-full": 2_257_000_000, "llama.cpp": 2_360_000_000}
    alone = cells(*(cell(name, 7680, 8, protocol="resident", rss_bytes=size) for name, size in sizes.items()), run="2")
    text = engines([*equal, *alone])
    assert "| ringkv, a quarter kept | 29 | 400 |  | 1,090 MB |" in text
    assert "| ringkv, all kept | 6 | 100 | 4.0x | 2,257 MB |" in text
    assert "| llama.cpp | 7 | 25 | 16.0x | 2,360 MB |" in text
    assert "vLLM" not in text


def test_the_bars_of_equal_bytes_are_those_of_the_measured_engines() -> None:
    rows = cells(
        cell("ringkv", 7680, 29, kept=1920, protocol="equal-bytes", decode_tps=400.0),
        cell("vllm", 7680, 7, protocol="equal-bytes", decode_tps=80.0),
        cell("vllm", 7680, 8, decode_tps=999.0),
    )
    texts = [each.text for each in ElementTree.fromstring(equal_memory(rows)).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1:3] == ["ringkv, a quarter kept", "vLLM"]
    assert texts[3:] == ["requests at once", "29", "7", "tokens/s of all together", "400", "80"]


def test_perplexity_is_shown_by_model_and_16_bits_are_left_out() -> None:
    here = {"model": "smollm2", "engine": "ringkv"}
    rows = measured(
        "perplexity",
        {**here, "weights": "bf16", "over_16_bits": 0.0},
        {**here, "weights": "int8", "over_16_bits": 0.012},
    )
    rows += measured("perplexity", {**here, "weights": "int8", "over_16_bits": -0.001}, machine="amd-avx512_bf16")
    rows += measured(
        "perplexity",
        {**here, "model": "qwen2.5-coder-1.5b", "engine": "openvino", "weights": "int4", "over_16_bits": 0.3},
    )
    lines = perplexity(rows).splitlines()
    assert lines[0] == "| engine and weights | SmolLM2-135M | Qwen2.5-Coder-1.5B |"
    assert lines[2:4] == ["| ringkv int8 | -0.10% |  |", "| openvino int4 |  | +30.00% |"]


def test_the_chart_shows_the_throughput_of_one_run() -> None:
    def at(rate: float, engine: str = "ringkv") -> list[dict[str, object]]:
        return [cell(engine, prompt, n, decode_tps=rate / prompt * n) for prompt in (512, 4096) for n in (1, 16)]

    rows = [*cells(*at(1e5), *at(5e4, "vllm"), run="wide"), *cells(*at(9e9), run="narrow")]
    picture = throughput(rows)
    assert "vLLM" in picture
    assert "OpenVINO" not in picture
    assert picture.count("<circle") == 2 + 8  # the legend, and each point
    assert "3,000" in picture
    assert "1e+" not in picture
