"""selections: what pages a layer selects, beside one selection for all its heads, and beside a guess one layer ahead.

    python -m bench.selections --model smollm2
    python -m bench.selections --model qwen2.5-coder-1.5b

Two decisions about `arkvale` rest on it (docs/decisions.md). transformers runs the model with all entries. At each step
of an answer every layer selects pages by their digests, with our reference; none is pinned. `attention` is the share of
the attention weights that the selected pages hold. Each key-value head selects, or one selection serves all heads of
the layer (`of one selection`). `least` is the share of the query head that loses most.

A guess projects the state that enters the layer before with the layer's own query weights, as ArkVale prefetches. `new`
pages were not selected in the step before; the guess finds a share of them. `wasted` pages were guessed, but neither
selected nor in memory. Figures are means over layers, heads and steps.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from bench.data import DATA
from bench.report.selections import HEAD, cells
from bench.results import keep, table
from ringkv.base.kv import KVChoice
from ringkv.base.page_counts import PageCounts
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.tasks.catalogue import select_tasks
from ringkv.evaluation.tasks.source import Source
from ringkv.kernels.decode_attend_pages import digest, in_pages, scores, selected
from ringkv.residency.locate import locate

TASKS = ("niah_multivalue", "niah_multikey_2", "qa_1")
SEED = 20261128
ATTENTION = "selections"  # its name in transformers


@dataclass
class Watch:
    """What layers select while the model answers. Selections are bool [1, H, P]."""

    page: int
    entries: int  # that slots hold at the end
    counts: Tensor  # int32 [1, 5], of `decode_attend_pages`
    before: dict[int, Tensor] = field(default_factory=dict)  # of the step before, by layer
    found: dict[str, list[float]] = field(default_factory=dict)

    def see(self, layer: int, q: Tensor, guess: Tensor | None, keys: Tensor, scale: float) -> None:
        """Note one layer's step: queries [1, H, G, D], the same as guessed, and keys [1, H, T, D]."""
        live = torch.tensor([keys.shape[2]], dtype=torch.int32)
        digests = self._digests(keys)
        own = self._selected(scores(q, digests) * scale, live)
        once = self._selected(scores(q, digests).flatten(1, 2)[:, None] * scale, live).expand_as(own)
        weights = (q.float() @ keys.float().mT * scale).softmax(-1)
        for name, pages in (("", own), ("_of_one", once)):
            held = _held(weights, in_pages(pages, live, self.page))
            self._note(f"attention{name}", held.mean().item())
            self._note(f"least{name}", held.min().item())
        if guess is not None and layer in self.before:
            self._compare(own, self._selected(scores(guess, digests) * scale, live), self.before[layer])
        self.before[layer] = own

    def _compare(self, own: Tensor, guess: Tensor, before: Tensor) -> None:
        heads, new = own.shape[1], own & ~before
        self._note("new", new.sum().item() / heads)
        self._note("wasted", (guess & ~own & ~before).sum().item() / heads)
        self._note("chosen", own.sum().item() / heads)
        if new.any():
            self._note("found", ((new & guess).sum() / new.sum()).item())

    def _digests(self, keys: Tensor) -> Tensor:
        """Return [1, H, P, 2, D]; those of pages that are not whole are zeros, and not looked at."""
        whole = keys.shape[2] // self.page
        own = digest(keys[:, :, : whole * self.page].unflatten(2, (whole, self.page)), True)
        return pad(own, (0, 0, 0, 0, 0, -(-self.entries // self.page) - whole))

    def _selected(self, of: Tensor, live: Tensor) -> Tensor:
        pins = torch.full((1, of.shape[1], of.shape[-1]), float("-inf"))
        return selected(of, pins, self.counts, live, self.page)

    def _note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)


def _held(weights: Tensor, entries: Tensor) -> Tensor:
    """Return [1, H, G]: the shares of attention weights [1, H, G, T] that entries, bool [1, H, C], hold."""
    return (weights * entries[:, :, None, : weights.shape[-1]]).sum(-1)


class Guesses:
    """Guesses each layer's queries from the state that enters the layer before it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers = model.model.layers
        self._states: dict[int, tuple[Tensor, Any]] = {}
        for index, layer in enumerate(self._layers):
            layer.register_forward_pre_hook(self._noted(index), with_kwargs=True)

    def _noted(self, index: int) -> Callable[..., None]:
        def note(_: object, args: tuple[Tensor, ...], kwargs: Mapping[str, Any]) -> None:
            self._states[index] = args[0], kwargs["position_embeddings"]

        return note

    def queries(self, layer: int, like: Tensor) -> Tensor | None:
        """Return a guess of the rotated queries `like` [1, heads, 1, D]; None for the first layer."""
        if layer == 0:
            return None
        state, (cos, sin) = self._states[layer - 1]
        own = self._layers[layer]
        q = own.self_attn.q_proj(own.input_layernorm(state)).view(1, 1, -1, like.shape[-1]).transpose(1, 2)
        return apply_rotary_pos_emb(q, q, cos, sin)[0]


def attention(watch: Watch, guesses: Guesses) -> Callable[..., tuple[Tensor, None]]:
    """Return transformers' attention, of which `watch` sees every step that feeds one token."""

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: object, scaling: float | None = None, **_: object
    ) -> tuple[Tensor, None]:
        is_step = query.shape[2] == 1
        if is_step:
            assert scaling is not None
            grouped = (1, key.shape[1], -1, query.shape[-1])
            guess = guesses.queries(module.layer_idx, query)
            of_step = None if guess is None else guess.reshape(grouped)
            watch.see(module.layer_idx, query.reshape(grouped), of_step, key, scaling)
        out = scaled_dot_product_attention(query, key, value, is_causal=not is_step, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    return attend


@torch.inference_mode()
def answer(model: PreTrainedModel, guesses: Guesses, prompt: list[int], steps: int, read: int, page: int) -> Watch:
    """Answer a prompt greedily, and return what the steps selected."""
    counts = PageCounts.of_choice(KVChoice("arkvale", budget=len(prompt) // read), page)
    watch = Watch(page, len(prompt) + steps, torch.tensor([[*counts, 1, 0]], dtype=torch.int32))
    AttentionInterface.register(ATTENTION, attention(watch, guesses))
    model.set_attn_implementation(ATTENTION)
    model.generate(
        torch.tensor([prompt]), max_new_tokens=steps + 1, min_new_tokens=steps + 1, do_sample=False, pad_token_id=0
    )
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8000, help="of a prompt, at most")
    parser.add_argument("--steps", type=int, default=32, help="of an answer")
    parser.add_argument("--read", type=int, default=4, help="a step reads one of so many entries")
    parser.add_argument("--page", type=int, default=32, help="entries of a page")
    args = parser.parse_args()
    folder = locate(args.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    guesses = Guesses(model)
    builder = PromptBuilder(folder, args.tokens, args.tokens + args.steps)
    source = Source((args.tokens,), 1, SEED, DATA, builder.count_tokens)
    figures = []
    for task in select_tasks(TASKS):
        prompt = list(builder.make(next(iter(task.samples(source))), "inside").whole)
        watch = answer(model, guesses, prompt, args.steps, args.read, args.page)
        figures.append({"task": task.name} | {name: fmean(values) for name, values in watch.found.items()})
        print(f"{task.name}: {len(prompt):,} tokens", flush=True)
    workload = {"model": args.model, "tokens": args.tokens, "read_one_of": args.read, "page": args.page}
    lines = [(str(one["task"]), *cells(one)) for one in figures]
    keep("selections", workload, figures, table(("task", *HEAD), lines))


if __name__ == "__main__":
    main()
