"""speculation: answers with and without drafts, alternating, and what a step of several tokens costs.

    python -m bench.speculation [--model qwen2.5-coder-1.5b] [--prompts 4] [--texts editing,chat]
    python -m bench.speculation --drafter qwen2.5-coder-0.5b --weights bf16 --texts completion,chat
    python -m bench.speculation --texts steps --model smollm2 --slots 8 --tokens 8192

Drafts are n-grams of the text, or those of a draft model. editing: three functions of HumanEval, rewritten with one
change. completion: functions of HumanEval to complete. chat: MT-bench questions, which repeat little. Both engines
answer each prompt, one after the other, and must return the same tokens. steps: decode steps of one and of all tokens
of every slot, which end with `--tokens` entries each in a full cache. Run it on an idle machine.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.arguments import command_line, names_of, report
from bench.data import DATA
from bench.results import keep, table
from ringkv import LLM, SamplingParams
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

BUDGET, PROMPT, ANSWER, STEPS = 2048, 4096, 256, 24
EDIT = "Rewrite this file. Give every function a return type if it has none; change nothing else. Reply with the code."
SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 0.7, top_p 0.95": {"temperature": 0.7, "top_p": 0.95},
}


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


def completion() -> list[str]:
    tasks = [json.loads(line) for line in (DATA / "code" / "HumanEval.jsonl").read_text().splitlines()]
    return [f"Complete this function. Reply with the code.\n\n```python\n{task['prompt']}```" for task in tasks]


def chat() -> list[str]:
    lines = (DATA / "chat" / "mt_bench_question.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


TEXTS: Mapping[str, Callable[[], list[str]]] = {"editing": editing, "completion": completion, "chat": chat}


def answer(llm: LLM, prompt: str, sampling: Mapping[str, Any]) -> Timed:
    params = SamplingParams(max_tokens=ANSWER, seed=1, **sampling)
    times, result = [], None
    for piece in llm.stream_chat([{"role": "user", "content": prompt}], params):
        if piece.token is not None:
            times.append(time.perf_counter())
        result = piece.result or result
    assert result is not None
    return Timed(result.token_ids, times[-1] - times[0], result.usage.drafted_tokens, result.usage.accepted_tokens)


def answers(plain: LLM, drafting: LLM, prompts: Sequence[str], sampling: str) -> dict[str, Any]:
    """Return the figures of prompts. Raises AssertionError if drafts changed a token."""
    pairs = []
    for at, prompt in enumerate(prompts):
        order = (plain, drafting) if at % 2 else (drafting, plain)
        one = {llm: answer(llm, prompt, SAMPLINGS[sampling]) for llm in order}
        assert one[plain].tokens == one[drafting].tokens, f"drafts changed the answer to {prompt[:60]!r}"
        pairs.append((one[plain], one[drafting]))
    tokens, kept = sum(len(a.tokens) - 1 for a, _ in pairs), sum(b.accepted for _, b in pairs)
    return {
        "without_s": sum(a.seconds for a, _ in pairs) / tokens,
        "with_s": sum(b.seconds for _, b in pairs) / tokens,
        "speedup": sum(a.seconds for a, _ in pairs) / sum(b.seconds for _, b in pairs),
        "accepted": kept / max(1, sum(b.drafted for _, b in pairs)),
        "per_pass": tokens / (tokens - kept),
    }


def steps(args: Any) -> dict[str, Any]:
    """Return the seconds of a step with one token of each slot, and of one with all drafts, alternating."""
    folder = locate(args.model)
    options = Options(
        slots=args.slots, prompt_tokens=args.tokens, kv_policy="full", speculate=args.drafts, graphs="off"
    )
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    after = 2 * STEPS * (1 + args.drafts)
    tokens = tuple((i * i * 31 + i * 7) % engine.limits.vocab for i in range(args.tokens - after))
    params = SamplingParams(temperature=0.0, max_tokens=after, ignore_eos=True)
    request = Request("steps", tokens, params)
    engine.admit(request)
    prefill(engine, request)
    for slot in range(args.slots):
        engine.insert(0, slot, request)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for step in range(2 * STEPS):
        is_drafted = step % 2 == 1
        runs = engine.sample().read()
        drafts = {slot: [runs[slot][-1].token] * args.drafts for slot in range(args.slots)} if is_drafted else None
        began = time.perf_counter()
        engine.forward(drafts)
        seconds[is_drafted].append(time.perf_counter() - began)
    one, several = (median(each[2:]) for each in (seconds[False], seconds[True]))
    return {"without_s": one, "with_s": several, "step_ratio": several / one}


def main() -> None:
    parser = command_line(__doc__, model="qwen2.5-coder-1.5b", drafts=3, prompts=4, slots=8, tokens=8192)
    parser.add_argument("--texts", type=names_of((*TEXTS, "steps"), "text"), default=("editing", "chat"))
    parser.add_argument("--samplings", type=int, default=len(SAMPLINGS), help="so many of the last ones")
    parser.add_argument("--drafter", help="the draft model; without it drafts are n-grams")
    parser.add_argument("--weights", help="of the model; the catalogue's by default")
    args = parser.parse_args()
    workload = {"model": args.model, "drafts": args.drafts}
    if args.drafter:
        workload |= {"drafter": args.drafter, "weights": args.weights}
    if args.texts == ("steps",):
        figure = steps(args)
        row = [f"{1e3 * figure[name]:.1f} ms" for name in ("without_s", "with_s")] + [f"{figure['step_ratio']:.2f}"]
        shown = table(("a step of one token", "with drafts", "ratio"), [row])
        keep("speculation", workload | {"slots": args.slots, "prompt": args.tokens, "text": "steps"}, [figure], shown)
        return
    config = {"method": "draft_model", "model": args.drafter, "num_speculative_tokens": args.drafts}
    drafts = {"speculative_config": config} if args.drafter else {"speculate": args.drafts}
    usual = {"slots": 1, "prompt_tokens": PROMPT, "kv_budget": BUDGET, "weights": args.weights, "graphs": "compiled"}
    plain, drafting = (LLM(args.model, **usual, **drafting) for drafting in ({}, drafts))
    figures = []
    for text in args.texts:
        prompts = TEXTS[text]()[: args.prompts]
        answers(plain, drafting, prompts[:1], "greedy")  # warms up
        for sampling in list(SAMPLINGS)[-args.samplings :]:
            figures.append({"text": text, "sampling": sampling, **answers(plain, drafting, prompts, sampling)})
            report(f"{text}, {sampling}: {figures[-1]['speedup']:.2f}")
    head = ("text", "sampling", "time per token without", "with", "throughput", "drafts kept", "tokens per pass")
    keep(
        "speculation", workload | {"slots": 1, "budget": BUDGET}, figures, table(head, [_row(each) for each in figures])
    )


def _row(figure: Mapping[str, Any]) -> tuple[str, ...]:
    times = (f"{1e3 * figure[name]:.1f} ms" for name in ("without_s", "with_s"))
    rates = f"{figure['speedup']:.2f}x", f"{figure['accepted']:.0%}", f"{figure['per_pass']:.2f}"
    return figure["text"], figure["sampling"], *times, *rates


if __name__ == "__main__":
    main()
