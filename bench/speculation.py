"""speculation: answers that repeat their prompt, with and without n-gram drafts, alternating.

    python -m bench.speculation [--model qwen2.5-coder-1.5b] [--drafts 3] [--prompts 6] [--temperatures 0,0.7]

editing: three functions of HumanEval, rewritten with one change. extraction: the beginning of a LongBench article, from
which sentences are copied. chat: MT-bench questions, which repeat little. Both engines answer each prompt, one after
the other, and must return the same tokens. Run it on an idle machine.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.data import DATA
from bench.results import keep, table
from ringkv import LLM, SamplingParams

BUDGET, PROMPT, ANSWER = 2048, 4096, 320
EDIT = "Rewrite this file. Give every function a return type if it has none; change nothing else. Reply with the code."
EXTRACT = "Copy, word for word, every sentence of this text that contains a number. Reply with the sentences alone."


class Timed(NamedTuple):
    tokens: tuple[int, ...]
    seconds: float  # of all tokens after the first
    drafted: int
    accepted: int


def editing() -> list[str]:
    tasks = [json.loads(line) for line in (DATA / "code" / "HumanEval.jsonl").read_text().splitlines()]
    functions = [task["prompt"] + task["canonical_solution"] for task in tasks]
    files = ["\n\n".join(functions[at : at + 3]) for at in range(0, len(functions), 3)]
    return [f"{EDIT}\n\n```python\n{file}\n```" for file in files]


def extraction() -> list[str]:
    lines = (DATA / "longbench" / "multifieldqa_en.jsonl").read_text().splitlines()
    return [f"{json.loads(line)['prompt'][:6000]}\n\n{EXTRACT}" for line in lines]


def chat() -> list[str]:
    lines = (DATA / "chat" / "mt_bench_question.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


WORKLOADS: Mapping[str, Callable[[], list[str]]] = {"editing": editing, "extraction": extraction, "chat": chat}


def answer(llm: LLM, prompt: str, temperature: float) -> Timed:
    """Generate one answer of at most `ANSWER` tokens."""
    sampling = SamplingParams(max_tokens=ANSWER, temperature=temperature, seed=1)
    times, result = [], None
    for piece in llm.stream_chat([{"role": "user", "content": prompt}], sampling):
        if piece.token is not None:
            times.append(time.perf_counter())
        result = piece.result or result
    assert result is not None
    return Timed(result.token_ids, times[-1] - times[0], result.usage.drafted_tokens, result.usage.accepted_tokens)


def measure(plain: LLM, drafting: LLM, name: str, prompts: Sequence[str], temperature: float) -> dict[str, object]:
    """Return the figures of one workload at one temperature. Raises AssertionError if drafts changed a token."""
    pairs = []
    for at, prompt in enumerate(prompts):
        order = (plain, drafting) if at % 2 == 0 else (drafting, plain)
        one = {llm: answer(llm, prompt, temperature) for llm in order}
        assert one[plain].tokens == one[drafting].tokens, f"drafts changed the answer to {prompt[:60]!r}"
        print(f"{name} {temperature:g} {at}: {one[plain].seconds / one[drafting].seconds:.2f}", flush=True)
        pairs.append((one[plain], one[drafting]))
    tokens = sum(len(a.tokens) - 1 for a, _ in pairs)
    return {
        "text": name,
        "temperature": f"{temperature:g}",
        "answered": f"{len(prompts)} prompts, {tokens:,} tokens",
        "without_s": sum(a.seconds for a, _ in pairs) / tokens,
        "with_s": sum(b.seconds for _, b in pairs) / tokens,
        "speedup": sum(a.seconds for a, _ in pairs) / sum(b.seconds for _, b in pairs),
        "speedup_median": median(a.seconds / b.seconds for a, b in pairs),
        "accepted": sum(b.accepted for _, b in pairs) / max(1, sum(b.drafted for _, b in pairs)),
        "per_pass": tokens / (tokens - sum(b.accepted for _, b in pairs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--temperatures", default="0,0.7")
    parser.add_argument("--texts", default=",".join(WORKLOADS))
    parser.add_argument("--dry", action="store_true", help="print the table, do not append it")
    args = parser.parse_args()
    plain, drafting = (
        LLM(args.model, slots=1, prompt_tokens=PROMPT, kv_budget=BUDGET, speculate=drafts)
        for drafts in (0, args.drafts)
    )
    figures = []
    for name in args.texts.split(","):
        prompts = WORKLOADS[name]()[: args.prompts]
        answer(drafting, prompts[0], 0.0)  # warm up both
        answer(plain, prompts[0], 0.0)
        figures += [measure(plain, drafting, name, prompts, float(t)) for t in args.temperatures.split(",")]
    head = ["text", "temperature", "time per token without", "with", "speed-up", "median", "drafts kept", "tokens/pass"]
    rows = [
        [
            f["text"],
            f["temperature"],
            f"{1e3 * f['without_s']:.1f} ms",
            f"{1e3 * f['with_s']:.1f} ms",
            f"{f['speedup']:.2f}",
            f"{f['speedup_median']:.2f}",
            f"{f['accepted']:.0%}",
            f"{f['per_pass']:.2f}",
        ]
        for f in figures
    ]
    if args.dry:
        print(table(head, rows))
        return
    workload = {"model": args.model, "drafts": args.drafts, "slots": 1, "budget": BUDGET}
    keep("speculation", workload, figures, table(head, rows))


if __name__ == "__main__":
    main()
