"""workspace: the memory, the prefill and the needles of a prompt that is compacted in a lane shorter than itself.

    python -m bench.workspace --model smollm2 --tokens 7500 --workspace 2048
    python -m bench.workspace --model qwen2.5-coder-1.5b --tokens 30000 --workspace 4096 --needles 3
    python -m bench.workspace --tokens 1000000 --workspace 4096 --needles 1 --stretch --cases short,bounded

A pass key lies in a text, at depths from 0 to 1, and the question is at the prompt's end. Three engines answer, each in
a process of its own: `bounded` with the workspace, `exact` with staging for the whole prompt, and `short` exactly for
prompts as long as the workspace. Slots have as many entries as the workspace. Peak memory is that of the whole process
once it is built, the model's pages included. Run it on an idle machine.

--stretch lets a prompt be longer than the model's context: memory and times are those of a model with such a context,
answers mean nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench.data import DATA
from bench.resident import STATUS
from ringkv.residency.locate import locate

if TYPE_CHECKING:
    from ringkv.engine.engine import LocalEngine
    from ringkv.text.tokenizer import Tokenizer

TEXT = DATA / "text" / "wikitext-2_test.txt"
NEEDLE = "\n\nThe pass key is {key}. Remember it: {key} is the pass key.\n\n"
QUESTION = "\n\nQuestion: What is the pass key? Answer: The pass key is"
ANSWER = 8  # tokens
PART = 2**18  # characters that are encoded at a time


@dataclass(frozen=True)
class WorkspaceFigure:
    case: str
    tokens: int
    staging_bytes: int
    peak_bytes: int
    prefill_s: float
    cpu_s: float  # the same, of all cores
    recall: float | None  # share of the needles that were found; None if answers mean nothing


def main() -> None:
    args = _arguments()
    if args.case:
        print(json.dumps(asdict(measured(args))))
        return
    from bench.results import keep

    figures = [WorkspaceFigure(**_in_a_process(case)) for case in args.cases.split(",")]
    workload = {name: getattr(args, name) for name in ("model", "tokens", "workspace", "needles", "stretch")}
    keep("workspace", workload, [asdict(one) for one in figures], shown(figures))


def _in_a_process(case: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.workspace", *sys.argv[1:], "--case", case]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(output, end="", flush=True)
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def measured(args: argparse.Namespace) -> WorkspaceFigure:
    """Answer every needle's question with the engine of one case."""
    from ringkv.engine.build import build
    from ringkv.models.config import load_config
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.options import Options
    from ringkv.plan.resolve import resolve
    from ringkv.text.tokenizer import Tokenizer

    folder, tokens = locate(args.model), args.workspace if args.case == "short" else args.tokens
    options = Options(
        slots=1,
        prompt_tokens=tokens,
        prefill_workspace=args.workspace if args.case == "bounded" else None,
        kv_budget=args.workspace,
        weights=args.weights,
        graphs=args.graphs,
    )
    config = load_config(folder)
    if args.stretch:
        config = replace(config, context=max(config.context, tokens + ANSWER))
    with patch("ringkv.engine.build.load_config", return_value=config):  # which would have the model's own context
        engine = build(resolve(folder, config, options, available_bytes()))
    tokenizer = Tokenizer.from_directory(folder)
    times, found = [], 0
    forget_peak()
    for prompt, key in needles(tokenizer, args.text, tokens, args.needles):
        times.append(_prefill(engine, prompt))
        found += key in tokenizer.decode(_answer(engine))
    seconds, cpu = (median(one) for one in zip(*times, strict=True))
    staging, recall = engine.limits.staging_bytes, None if args.stretch else found / args.needles
    return WorkspaceFigure(args.case, tokens, staging, peak_bytes(), seconds, cpu, recall)


def needles(tokenizer: "Tokenizer", text: Path, tokens: int, count: int) -> Iterator[tuple[list[int], str]]:
    """Yield prompts of so many tokens with a pass key at depths from 0 to 1, and the keys."""
    words = text.read_text(encoding="utf-8")
    words *= -(-16 * tokens // len(words))  # a part from the first half on is long enough
    question = tokenizer.encode(QUESTION)
    for number in range(count):
        rng = Random(number)
        key = str(rng.randint(10_000, 99_999))
        needle, start = tokenizer.encode(NEEDLE.format(key=key)), rng.randrange(len(words) // 2)
        hay = _encoded(tokenizer, words[start:], tokens - len(needle) - len(question))
        at = round((number + 0.5) / count * len(hay))
        yield [*hay[:at], *needle, *hay[at:], *question], key


def _encoded(tokenizer: "Tokenizer", words: str, count: int) -> list[int]:
    """Return the first tokens of a text, which is encoded in parts, so that peak memory is not the tokenizer's."""
    found: list[int] = []
    for at in range(0, len(words), PART):
        if len(found) >= count:
            break
        found += tokenizer.encode(words[at : at + PART], add_special_tokens=False)
    return found[:count]


def _prefill(engine: "LocalEngine", prompt: list[int]) -> tuple[float, float]:
    """Prefill, compress and insert a prompt. Returns the seconds, and those of all cores."""
    from ringkv.base.engine import prefill
    from ringkv.base.request import Request
    from ringkv.base.sampling import SamplingParams

    request = Request("needle", tuple(prompt), SamplingParams(temperature=0))
    engine.admit(request)
    begun = time.perf_counter(), time.process_time()
    prefill(engine, request)
    engine.insert(0, 0, request)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def _answer(engine: "LocalEngine") -> list[int]:
    tokens = []
    for _ in range(ANSWER):
        ((sampled, _),) = engine.sample().read()[0]
        assert sampled is not None
        tokens.append(sampled)
        engine.forward()
    engine.release(0)
    return tokens


def forget_peak() -> None:
    """Let the most resident memory be what is resident now: loading weights takes more for a moment."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(status: Path = STATUS) -> int:
    """Return the most memory that this process had resident since `forget_peak`."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def shown(figures: list[WorkspaceFigure]) -> str:
    from bench.results import table

    head = ("case", "tokens", "staging", "peak memory", "prefill", "CPU", "needles found")
    lines = [
        (
            one.case,
            f"{one.tokens:,}",
            f"{one.staging_bytes / 1e6:,.0f} MB",
            f"{one.peak_bytes / 1e6:,.0f} MB",
            f"{one.prefill_s:.1f} s",
            f"{one.cpu_s:.1f} s",
            "" if one.recall is None else f"{100 * one.recall:.0f}%",
        )
        for one in figures
    ]
    return table(head, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=7500)
    parser.add_argument("--workspace", type=int, default=2048)
    parser.add_argument("--needles", type=int, default=5)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--stretch", action="store_true", help="let prompts be longer than the model's context")
    parser.add_argument("--graphs", default="off", help="off, so that no compiler's memory is counted")
    parser.add_argument("--cases", default="short,bounded,exact")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
