"""accuracy: the tasks of `ringkv eval` through vLLM with the plug-in, beside ringkv's own answers to the same prompts.

    ringkv eval smollm2 --tasks ruler --lengths 4k --count 5 --budgets 4x --to answers
    python plugins/vllm/accuracy.py smollm2 --tasks ruler --lengths 4096 --count 5 --budget 4x --answers answers

Run the second command with the Python that has vLLM. Every prompt is answered greedily by the full cache and by one of
the given budget. Differences are from ringkv's scores of the same prompts, with 95% intervals over prompts.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringkv.base.kv import KVChoice
from ringkv.base.progress import silent
from ringkv.evaluation.bootstrap import mean_of
from ringkv.evaluation.cells import FULL, Cell
from ringkv.evaluation.journal import NAME
from ringkv.evaluation.pending import Study, UnansweredPrompt, prepare
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.sample import Answer
from ringkv.evaluation.tasks.catalogue import select_tasks
from ringkv.evaluation.tasks.source import Source
from ringkv.models.config import load_config
from ringkv.residency.locate import locate

Key = tuple[str, ...]
Scores = dict[Key, tuple[float, str]]
"""Score and text by task, place, sample and cell."""


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tasks", default="ruler")
    parser.add_argument("--lengths", default="4096", help="tokens, with commas between")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--budget", default="4x")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dtype", default="bfloat16", help="float32 on a processor without bfloat16")
    parser.add_argument("--kv-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--answers", type=Path, required=True, help="folder that `ringkv eval` wrote to")
    args = parser.parse_args()
    folder = locate(args.model)
    cells = (Cell(KVChoice(FULL)), Cell(KVChoice(), args.budget))
    ringkv = of_journal(args.answers / NAME)
    items = [item for item in prompts_of(args, folder, cells) if all(item.key(cell) in ringkv for cell in cells)]
    print(f"{len(items)} prompts", flush=True)
    ours = answers(args, folder, items, cells)
    print(f"{'cache':20}{'ringkv':>9}{'plug-in':>9}{'difference':>12}{'95% interval':>18}{'equal answers':>16}")
    for cell in cells:
        keys = [item.key(cell) for item in items]
        pairs = [(ours[key], ringkv[key]) for key in keys]
        by_task: dict[str, list[float]] = defaultdict(list)
        for key, (new, old) in zip(keys, pairs, strict=True):
            by_task[key[0]].append(new[0] - old[0])
        difference = mean_of(list(by_task.values()))
        assert difference is not None, "no prompts"
        means = [100 * sum(pair[side][0] for pair in pairs) / len(pairs) for side in (1, 0)]
        interval = f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
        equal = sum(new[1] == old[1] for new, old in pairs)
        print(f"{cell.label:20}{means[0]:9.1f}{means[1]:9.1f}{100 * difference.mean:+12.1f}{interval:>18}{equal:>16}")


def prompts_of(args: Namespace, folder: Path, cells: Sequence[Cell]) -> list[UnansweredPrompt]:
    lengths = tuple(int(length) for length in args.lengths.split(","))
    study = Study(args.model, args.tasks.split(","), cells, lengths, count=args.count, data=args.data)
    builder = PromptBuilder(folder, max(lengths), load_config(folder).context)
    source = Source(lengths, args.count, study.seed, args.data, builder.count_tokens)
    return prepare(select_tasks(study.tasks), study, source, builder, {}, silent)[0]


def of_journal(path: Path) -> Scores:
    """Return ringkv's scores and texts."""
    records = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("score") is not None]
    return {tuple(line[name] for name in ("task", "place", "sample", "cell")): _scored(line) for line in records}


def _scored(line: Mapping[str, Any]) -> tuple[float, str]:
    return line["score"], line["text"]


def answers(args: Namespace, folder: Path, items: Sequence[UnansweredPrompt], cells: Sequence[Cell]) -> Scores:
    """Return the scores and texts of vLLM with the plug-in."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams

    tokenizer = PromptBuilder(folder, 1, 1).tokenizer
    largest = max(cells[1].entries(len(item.prompt.tokens), item.output) for item in items)
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        dtype=args.dtype,
        enforce_eager=True,
        enable_prefix_caching=True,
        max_model_len=max(len(item.prompt.tokens) + item.output for item in items) + 1,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=args.kv_bytes,
        scheduler_cls="ringkv_vllm.scheduler.SnapStreamScheduler",
        worker_cls="ringkv_vllm.worker.SnapStreamWorker",
        additional_config={"ringkv": {"kv_budget": largest, "allow_full": True}},
        logits_processors=["ringkv_vllm.requests:RequestSettings"],
    )
    asked = [(item, cell) for item in items for cell in cells]
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=item.output,
            stop_token_ids=list(tokenizer.eos_ids),
            detokenize=False,
            extra_args=_settings(item, cell),
        )
        for item, cell in asked
    ]
    outputs = llm.generate([{"prompt_token_ids": list(item.prompt.tokens)} for item, _ in asked], params)
    found: Scores = {}
    for (item, cell), output in zip(asked, outputs, strict=True):
        tokens = [token for token in output.outputs[0].token_ids if token not in tokenizer.eos_ids]
        text = tokenizer.decode(tokens)
        found[item.key(cell)] = item.task.score(Answer(text), item.sample), text
    return found


def _settings(item: UnansweredPrompt, cell: Cell) -> dict[str, Any]:
    choice = item.choice(cell)
    return {"kv_policy": FULL} if choice.policy == FULL else {"kv_budget": choice.budget}


if __name__ == "__main__":
    main()
