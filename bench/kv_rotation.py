"""kv_rotation: what int8, fp8 and int4 cost in transformers, and int4 without its rotation.

    python -m bench.kv_rotation --model smollm2
    python -m bench.kv_rotation --model qwen2.5-coder-1.5b --windows 4

The first texts of WikiText-2's test split are scored in one pass each. Keys (after the rotary embedding, minus their
mean over the text) and values are encoded and decoded before attention. The first tokens' keys stay exact, and so do
the layers at both ends that `--kv-format-skip` names by default. `divergence` is the mean Kullback-Leibler divergence
of the next token's distribution from that with plain keys and values; it needs fewer tokens than a perplexity.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from bench.data import DATA
from bench.results import keep, table
from ringkv.base.cache_spec import SINKS, SKIPPED
from ringkv.kernels.decode_attend_fp8 import FP8
from ringkv.kernels.decode_attend_int4 import INT4
from ringkv.kernels.decode_attend_int8 import INT8
from ringkv.kernels.encoded_attend import Encoding
from ringkv.kernels.hadamard import rotate
from ringkv.residency.locate import locate
from ringkv.text.tokenizer import Tokenizer

WINDOW, SCORED, ROWS = 1024, 768, 128  # tokens of a text, those at its end that are scored, rows of logits at a time
ATTENTION = "kv_rotation"  # its name in transformers


class RoundTrip(NamedTuple):
    """Vectors float32 [..., D] as attention reads them back; `first` keys stay exact; so do `skip` layers per end."""

    change: Callable[[Tensor], Tensor]
    first: int = 0
    skip: int = 0


class Score(NamedTuple):
    """One value per scored token, in nats."""

    loss: list[float]
    divergence: list[float]  # from plain keys and values


def _through(encoding: Encoding) -> Callable[[Tensor], Tensor]:
    return lambda vectors: encoding.decode(*encoding.encode(vectors))


def unrotated(encoding: Encoding) -> Callable[[Tensor], Tensor]:
    """Return an encoding's round trip without its rotation, which is its own inverse: it is applied on both sides."""
    return lambda vectors: rotate(encoding.decode(*encoding.encode(rotate(vectors))))


CASES: Mapping[str, RoundTrip] = {
    "plain": RoundTrip(lambda vectors: vectors),
    "int8": RoundTrip(_through(INT8), SINKS),
    "fp8": RoundTrip(_through(FP8), SINKS),
    "int4": RoundTrip(_through(INT4), SINKS, SKIPPED["int4"]),
    "int4, not rotated": RoundTrip(unrotated(INT4), SINKS, SKIPPED["int4"]),
    "int4, all layers": RoundTrip(_through(INT4), SINKS),
}


def attention(case: RoundTrip, layers: int) -> Callable[..., tuple[Tensor, None]]:
    """Return transformers' attention with keys and values [1, H, T, D] that went through `case`."""

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: object, scaling: float | None = None, **_: object
    ) -> tuple[Tensor, None]:
        if case.skip <= module.layer_idx < layers - case.skip:
            key, value = _keys(case, key), case.change(value.float()).to(value.dtype)
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    return attend


def _keys(case: RoundTrip, key: Tensor) -> Tensor:
    center = key.float().mean(2, keepdim=True)
    changed = (case.change(key.float() - center) + center).to(key.dtype)
    return torch.cat((key[:, :, : case.first], changed[:, :, case.first :]), 2)


@torch.inference_mode()
def scored(model: PreTrainedModel, text: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities float32 [n, V] and the tokens [n] that follow, for the end of a text."""
    tokens = torch.tensor([text])
    hidden = model.model(tokens).last_hidden_state[0, -SCORED - 1 : -1]
    for rows, following in zip(hidden.split(ROWS), tokens[0, -SCORED:].split(ROWS), strict=True):
        yield model.lm_head(rows).float().log_softmax(-1), following


def scores(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> dict[str, Score]:
    """Return the losses and divergences of each case."""
    found = {name: Score([], []) for name in CASES}
    layers = model.config.num_hidden_layers
    for number, text in enumerate(texts):
        plain: list[Tensor] = []
        for name, case in CASES.items():
            AttentionInterface.register(ATTENTION, attention(case, layers))
            model.set_attn_implementation(ATTENTION)
            for at, (log, following) in enumerate(scored(model, text)):
                plain += [log] if name == "plain" else []
                found[name].loss.extend((-log.gather(1, following[:, None])).flatten().tolist())
                found[name].divergence.extend((plain[at].exp() * (plain[at] - log)).sum(-1).tolist())
        print(f"{number + 1} of {len(texts)} texts", flush=True)
    return found


def figure(name: str, own: Score, plain: Score) -> dict[str, object]:
    """Return perplexity, its increase over plain with a standard error over tokens, and the divergence."""
    more = [mine - other for mine, other in zip(own.loss, plain.loss, strict=True)]
    return {
        "encoding": name,
        "perplexity": math.exp(fmean(own.loss)),
        "more": math.expm1(fmean(more)),
        "more_error": pstdev(more) / math.sqrt(len(more)),
        "divergence": fmean(own.divergence),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=8, help=f"texts of {WINDOW} tokens")
    args = parser.parse_args()
    folder: Path = locate(args.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = Tokenizer.from_directory(folder).encode((DATA / "text" / "wikitext-2_test.txt").read_text()[:400_000])
    found = scores(model, [ids[at * WINDOW : (at + 1) * WINDOW] for at in range(args.windows)])
    figures = [figure(name, own, found["plain"]) for name, own in found.items()]
    lines = [
        (
            f["encoding"],
            f"{f['perplexity']:.4f}",
            f"{f['more']:+.2%} ± {f['more_error']:.2%}",
            f"{1e3 * f['divergence']:.2f}",  # type: ignore[operator]
        )
        for f in figures
    ]
    head = ("keys and values in", "perplexity", "over plain", "divergence, 1/1000 nats")
    keep("kv_rotation", {"model": args.model, "tokens": args.windows * SCORED}, figures, table(head, lines))


if __name__ == "__main__":
    main()
