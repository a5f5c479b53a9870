"""hybrid: a model of sliding-window and full layers at 32k tokens, beside transformers in float32.

    python -m bench.hybrid [--tokens 32768] [--steps 200]

A random model with Gemma 3's layout (five layers of six with a window of 1,024) answers one prompt greedily twice: with
a full cache, token by token beside transformers, and with 2,048 entries, whose slots are shown. It ends with status 1
if an answer, a logit or the size of a ring differs. A few minutes and 4 GB of memory.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor

from bench.results import TABLE, keep, table
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve

WINDOW, LAYERS, EVERY, VOCAB = 1024, 12, 6, 512
CHUNK = 512  # tokens that transformers reads at once
BUDGET = 2048
TOLERANCE = 1e-4  # of logits, in float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to")
    args = parser.parse_args()
    tokens = Random(0).choices(range(3, VOCAB), k=args.tokens)
    with TemporaryDirectory() as name:
        folder = Path(name)
        theirs = _model(args.tokens + args.steps)
        theirs.save_pretrained(folder)
        engine = _engine(folder, args.tokens, kv_policy="full", kv_budget=args.tokens + args.steps)
        answer, logits = _answer(engine, tokens, args.steps)
        small = _engine(folder, args.tokens, kv_budget=BUDGET)
    figures = [*_rings(engine, "full"), *_rings(small, f"{BUDGET:,} entries")]
    wanted = _by_transformers(theirs, tokens, answer)
    same = sum(mine == best for mine, best in zip(answer, wanted.argmax(-1).tolist(), strict=True))
    error = (logits - wanted).abs().max().item()
    figures.append({"part": "answer", "same": same / len(answer), "error": error})
    keep("hybrid", {"prompt": args.tokens, "steps": args.steps}, figures, _shown(figures), args.to)
    rings = all(one["entries"] == WINDOW for one in figures if one["part"] == "window layers")
    sys.exit(not (rings and same == len(answer) and error < TOLERANCE))


def _model(context: int) -> Any:
    """Return a random Gemma 3 whose norms are not trivial."""
    torch.manual_seed(0)
    kinds = ["full_attention" if layer % EVERY == EVERY - 1 else "sliding_attention" for layer in range(LAYERS)]
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=context, sliding_window=WINDOW,
        layer_types=kinds,
    )  # fmt: skip
    model = transformers.Gemma3ForCausalLM(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def _engine(folder: Path, tokens: int, **options: Any) -> LocalEngine:
    settings = Options(prompt_tokens=tokens, slots=1, dtype="float32", graphs="off", prefix_store=0, **options)
    return build(resolve(folder, load_config(folder), settings, available_bytes()))


def _answer(engine: LocalEngine, tokens: Sequence[int], steps: int) -> tuple[list[int], Tensor]:
    """Return the greedy answer, and the logits [steps, V] of each of its tokens."""
    request = Request("hybrid", tuple(tokens), SamplingParams(max_tokens=steps, ignore_eos=True))
    prefill(engine, request)
    logits = [engine.lanes.logits(0).clone()]
    engine.insert(0, 0, request)
    answer = []
    for _ in range(steps):
        ((token, _),) = engine.sample().read()[0]
        answer.append(token)
        engine.forward()
        logits.append(engine.batch.logits[0].clone())
    return answer, torch.stack(logits[:-1])


@torch.inference_mode()
def _by_transformers(model: Any, tokens: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Return transformers' logits [steps, V] of each token of an answer."""
    cache, rows = transformers.DynamicCache(), list[Tensor]()
    whole = torch.tensor([[*tokens, *answer[:-1]]])
    for part in whole.split(CHUNK, dim=1):
        rows.append(model(part, past_key_values=cache).logits[0])
    return torch.cat(rows)[-len(answer) :]


def _rings(engine: LocalEngine, cache: str) -> Iterator[dict[str, Any]]:
    """Yield what each group of layers holds for a slot."""
    for body in engine.batch.bodies:
        part = "full layers" if body.group.window is None else "window layers"
        size = sum(plane.nbytes for plane in body.planes)
        yield {
            "part": part,
            "cache": cache,
            "layers": len(body.group.layers),
            "entries": body.entries,
            "total_bytes": size,
        }


def _shown(figures: Sequence[dict[str, Any]]) -> str:
    *rings, answer = figures
    lines = [
        (f"{one['cache']}", f"{one['part']}", f"{one['layers']}", f"{one['entries']:,}", f"{one['total_bytes']:,}")
        for one in rings
    ]
    return (
        f"{answer['same']:.0%} of the answer's tokens are transformers'; logits differ by at most {answer['error']:.1e}"
        f"\n\n{table(('cache', 'layers', 'count', 'entries a slot', 'bytes'), lines)}"
    )


if __name__ == "__main__":
    main()
