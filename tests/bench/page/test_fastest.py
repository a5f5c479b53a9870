from bench.page.fastest import brief, fastest
from tests.bench.page.made import cell, made


def test_each_workload_names_the_peer_that_is_nearest() -> None:
    cells = [
        cell("ringkv", 7680, 8, kept=1920, decode_tps=300.0),
        cell("ringkv-full", 7680, 8, decode_tps=100.0),
        cell("vllm", 7680, 8, decode_tps=150.0),
        cell("ringkv", 512, 1, kept=128, decode_tps=40.0, prefill_tps=1000.0),
        cell("llama.cpp", 512, 1, weights="f16", decode_tps=50.0, prefill_tps=500.0),
    ]
    text = fastest(made(cells))
    assert "ringkv is ahead in 1 of 2 decode workloads; keeping everything, ahead in 0 of 1." in text
    assert "| SmolLM2-135M, 8 x 7,680 | ringkv | 300 | vllm | 150 | 2.00x | vLLM |" in text
    assert "| SmolLM2-135M, 1 x 512 | ringkv | 40.0 | llama.cpp | 50.0 | 0.80x | llama.cpp |" in text
    assert "ringkv is ahead in 1 of 1 prefill workloads." in text


def test_in_short_each_model_has_its_lightest_and_heaviest_workload() -> None:
    cells = [
        cell(engine, prompt, requests, decode_tps=speed)
        for prompt, requests in ((512, 1), (512, 8), (7680, 1), (7680, 8))
        for engine, speed in (("ringkv-full", 120.0), ("vllm", 100.0))
    ]
    text = brief(made(cells))
    assert "ahead in 4 of 4 decode workloads" in text
    assert [line.split(" | ")[0] for line in text.splitlines()[4:]] == [
        "| SmolLM2-135M, 1 x 512",
        "| SmolLM2-135M, 8 x 7,680",
    ]
    assert brief(made([])) == ""


def test_by_turns_that_both_shared_and_not_by_medians() -> None:
    cells = [
        cell("ringkv", 512, 1, kept=128, decode_tps=60.0, ringkv_decodes=1.0),
        cell("openvino", 512, 1, decode_tps=50.0, ringkv_decodes=0.9),
    ]
    assert "ahead in 0 of 1 decode" in fastest(made(cells))


def test_a_twentieth_is_no_lead() -> None:
    cells = [
        cell("ringkv-full", 512, 1, decode_tps=104.0),
        cell("openvino", 512, 1, decode_tps=100.0),
        cell("ringkv-full", 512, 4, decode_tps=110.0),
        cell("openvino", 512, 4, decode_tps=100.0),
    ]
    assert "ahead in 1 and level (within 5%) in 1 of 2 decode" in fastest(made(cells))


def test_engines_of_different_runs_are_not_held_against_each_other() -> None:
    quick = [
        cell("ringkv", 512, 1, kept=128, decode_tps=60.0, run="a quick hour"),
        cell("vllm", 512, 1, decode_tps=30.0, run="a quick hour"),
    ]
    slow = [
        cell("ringkv", 512, 1, kept=128, decode_tps=20.0, run="a slow hour"),
        cell("openvino", 512, 1, decode_tps=16.0, run="a slow hour"),
    ]
    text = fastest(made([*quick, *slow]))
    assert "| SmolLM2-135M, 1 x 512 | ringkv | 20.0 | openvino | 16.0 | 1.25x | vLLM, OpenVINO |" in text


def test_fewer_bits_have_tables_of_their_own_with_those_that_keep_sixteen() -> None:
    cells = [
        cell("ringkv", 512, 1, kept=128, decode_tps=40.0, prefill_tps=100.0, run="w16"),
        cell("openvino", 512, 1, decode_tps=50.0, prefill_tps=50.0, run="w16"),
        cell("ringkv", 512, 1, kept=128, weights="int8", decode_tps=90.0, prefill_tps=100.0, run="w8"),
        cell("llama.cpp", 512, 1, weights="q8_0", decode_tps=30.0, prefill_tps=200.0, run="w8"),
        cell("vllm", 512, 1, decode_tps=45.0, prefill_tps=80.0, run="w8"),
    ]
    sixteen, eight = fastest(made(cells)).split("Weights of fewer bits")
    assert "At 16-bit weights ringkv is ahead in 0 of 1 decode workloads" in sixteen
    assert "| SmolLM2-135M, 1 x 512 | ringkv | 40.0 | openvino | 50.0 | 0.80x | OpenVINO |" in sixteen
    assert "At 8-bit weights ringkv is ahead in 1 of 1 decode workloads" in eight
    assert "| SmolLM2-135M, 1 x 512 | ringkv | 90.0 | vllm | 45.0 | 2.00x | llama.cpp, vLLM |" in eight
    assert "| SmolLM2-135M, 512 | ringkv | 100 | llama.cpp | 200 | 0.50x | llama.cpp, vLLM |" in eight
    assert "4-bit weights" not in eight


def test_nothing_measured_is_said() -> None:
    assert fastest(made()).startswith("Not measured")
