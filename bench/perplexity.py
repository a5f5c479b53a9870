"""perplexity: the cost of fewer bits per weight, beside llama.cpp and OpenVINO at theirs, on the same tokens.

    python -m bench.perplexity --model smollm2                        all of WikiText-2's test text
    python -m bench.perplexity --model smollm2 --tokens 20480         its first ten windows
    python -m bench.perplexity --theirs openvino                      beside OpenVINO alone

The text is cut into windows of 2,048 tokens. Each is prefilled on its own, and every token except the first is scored.
Our figures use the engine's own prefill and vocabulary projection. All engines score the tokens of our tokenizer.

A model that was pulled as a low-bit GGUF is already rounded: 4-bit types that reproduce the file's groups look better
here than they would on the original weights. The table names the file's types.
"""

import json
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.arguments import command_line
from bench.data import DATA, REPOSITORY
from bench.peers.engines import Format
from bench.peers.install import python_of
from bench.peers.weights import MAKERS
from bench.results import keep, table
from ringkv.models.config import load_config
from ringkv.plan.options import Options
from ringkv.plan.shapes import Shape
from ringkv.residency.locate import locate
from ringkv.residency.pull import pull
from ringkv.text.tokenizer import Tokenizer

TEXT = DATA / "text" / "wikitext-2_test.txt"
WINDOW = 2048  # tokens
SCORED = 128  # rows of logits in memory at a time
SIXTEEN = ("bf16", "f16")
EXPORTED = "openvino_model.bin"  # the weights in a folder that optimum-intel exports
OURS: Mapping[str, Options] = {
    "bf16": Options(weights="bf16"),
    "int8": Options(weights="int8"),
    "int4": Options(weights="int4"),
    "int8, 16-bit activations": Options(weights="int8", activations="16-bit"),
    "int4, 16-bit activations": Options(weights="int4", activations="16-bit"),
    "int4, 4-bit activations": Options(weights="int4", activations="int4"),
}
Windows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class WeightsFigure:
    model: str
    engine: str
    weights: str
    bits: float  # per parameter, including scales, norms and biases
    perplexity: float
    over_16_bits: float | None  # perplexity over the same engine's at 16 bits, less 1


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", nargs="+", default=["smollm2"])
    parser.add_argument("--tokens", type=int, help="score this many tokens from the text's beginning (all)")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ours", nargs="*", choices=OURS, default=list(OURS))
    parser.add_argument("--theirs", nargs="*", choices=PEERS, default=list(PEERS), help="other engines (all)")
    args = parser.parse_args()
    if not args.text.is_file():
        raise SystemExit(f"{args.text} does not exist; pass a text file with --text")
    figures = [figure for model in args.model for figure in measure(model, args)]
    made_of = "; ".join(f"{model} is made of {_types(model)}" for model in args.model)
    workload = {"text": args.text.name, "window": WINDOW, "tokens": args.tokens or "all", "made_of": made_of}
    keep("perplexity", workload, [asdict(figure) for figure in figures], shown(figures))


def measure(model: str, args: Namespace) -> Iterator[WeightsFigure]:
    """Measure our weight dtypes, then the other engines'."""
    text = windows(model, args.text, args.tokens)
    count = Shape.of(load_config(locate(model)), model).parameters
    at_16_bits: dict[str, float] = {}
    runs = [("ringkv", dtype) for dtype in args.ours]
    runs += [(engine, dtype) for engine in args.theirs for dtype in PEERS[engine].weights]
    for engine, weights in runs:
        print(f"{model}: {engine} {weights}, {len(text)} windows", flush=True)
        size, losses = SIDES[engine](model, weights, text, args.threads)
        perplexity = exp(fmean(losses))
        if weights in SIXTEEN:
            at_16_bits[engine] = perplexity
        over = perplexity / at_16_bits[engine] - 1 if engine in at_16_bits else None
        yield WeightsFigure(model, engine, weights, 8 * size / count, perplexity, over)


def windows(model: str, text: Path, tokens: int | None) -> Windows:
    """Return the text's token ids in whole windows."""
    ids = Tokenizer.from_directory(locate(model)).encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
    ids = ids[:tokens]
    if len(ids) < WINDOW:
        raise SystemExit(f"the text has {len(ids):,} tokens, and a window is {WINDOW:,}; pass a longer text")
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]


def ours(model: str, weights: str, text: Windows, threads: int | None) -> tuple[int, list[float]]:
    """Return the bytes of our weights, and each window's mean loss in nats."""
    from ringkv.engine.build import build
    from ringkv.plan.memory import available_bytes
    from ringkv.plan.resolve import resolve

    folder = locate(model)
    options = replace(OURS[weights], threads=threads, kv_policy="full", prompt_tokens=WINDOW, graphs="off")
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    return engine.weight_bytes, [loss(engine, window) for window in text]


def loss(engine: Any, window: Sequence[int]) -> float:
    """Return the mean loss over all tokens except the first, in nats."""
    import torch
    from torch.nn.functional import cross_entropy

    following, total = torch.tensor(window[1:]), 0.0
    left = following
    for logits in engine.prompt_logits(window, SCORED):
        targets, left = left[: len(logits)], left[len(logits) :]
        total += float(cross_entropy(logits[: len(targets)], targets, reduction="sum"))
    return total / len(following)


@dataclass(frozen=True)
class Peer:
    """Another engine: the format and dtypes of its weights, 16 bits first, and how it scores windows.

    name: its environment, too. size: bytes of the weights at a path.
    """

    name: str
    format: Format
    weights: tuple[str, ...]
    size: Callable[[Path], int]

    def __call__(self, model: str, weights: str, text: Windows, threads: int | None) -> tuple[int, list[float]]:
        """Return the bytes of its weights, and each window's mean loss in nats, from its own environment."""
        path = MAKERS[self.format](model, weights, print)
        command = [python_of(self.name), "-m", "bench.peers.workers.likelihood", self.name, path, str(threads or 0)]
        given = json.dumps(text)
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=REPOSITORY)
        if done.returncode:
            raise SystemExit(f"{self.name} failed: {done.stderr[-500:]}")
        return self.size(path), json.loads(done.stdout.splitlines()[-1])


def _gguf_bytes(path: Path) -> int:
    from gguf import GGUFReader

    return sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors)


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("llama.cpp", "gguf", ("bf16", "q8_0", "q4_1", "q4_0"), _gguf_bytes),
        Peer("openvino", "openvino", ("f16", "int8", "int4"), lambda path: (path / EXPORTED).stat().st_size),
    )
}
SIDES: dict[str, Any] = {"ringkv": ours, **PEERS}


def _types(model: str) -> str:
    """Return the types of the matrices in the GGUF that a model was converted from."""
    from gguf import GGUFReader

    types = Counter(tensor.tensor_type.name for tensor in GGUFReader(pull(model)).tensors if len(tensor.shape) > 1)
    return ", ".join(f"{count} {name}" for name, count in types.most_common())


def shown(figures: Sequence[WeightsFigure]) -> str:
    head = ("model, engine and weights", "bits per parameter", "perplexity", "over its own 16 bits")
    rows = [
        (
            f"{figure.model}, {figure.engine} {figure.weights}",
            f"{figure.bits:.2f}",
            f"{figure.perplexity:.3f}",
            "" if figure.over_16_bits is None else f"{figure.over_16_bits:+.2%}",
        )
        for figure in figures
    ]
    return table(head, rows)


if __name__ == "__main__":
    main()
