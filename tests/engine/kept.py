"""transformers' models, which attend to exactly the tokens that an engine's compressed caches hold; for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ringkv.engine.engine import LocalEngine

NAME = "attends_to_kept_tokens"


def visible(engine: LocalEngine, prompt: int, total: int) -> list[Tensor]:
    """Which tokens each token sees, bool [H, T, T] for each layer: all before it, and those in the slot's entries."""
    choice, groups = engine.default_kv, engine.lanes.groups
    plans, kept = engine.compress(0, choice), engine.kept(0, choice)
    at, found = torch.arange(total)[:, None], []
    for (group, _, _), entries in zip(engine.model.places, kept, strict=True):
        causal = (at.T <= at) & (at.T > at - (groups[group].window or total))
        heads, entries = torch.arange(len(entries)), torch.from_numpy(entries)
        more = (entries >= 0).sum(1) - plans[group].live(prompt)  # of a head that divides entries with others
        seen = causal.expand(len(heads), -1, -1).clone()
        held = torch.full((len(heads), max(entries.shape[1], plans[group].capacity + int(more.max()))), -1)
        held[:, : entries.shape[1]] = entries
        for position in range(prompt, total):
            held[heads, plans[group].entry(position) + more] = position
            seen[:, position] = (held[:, :, None] == torch.arange(total)).any(1)
        found.append(seen)
    return found


def model(
    folder: Path, kind: str, seen: Sequence[Tensor], monkeypatch: pytest.MonkeyPatch, kv_source: Sequence[int] = ()
) -> Any:
    """Return transformers' model of `kind`, each of whose layers sees these tokens.

    kv_source: for each layer the one whose keys and values it attends to; empty if all have their own.
    """
    written: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: object,
        scaling: float,
        s_aux: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        layer = module.layer_idx
        weight = getattr(getattr(module, "key_layernorm", None), "weight", torch.ones(1))  # of Hunyuan, after rotation
        written[layer] = k / weight, v
        k, v = written[kv_source[layer] if kv_source else layer]
        k = k * weight
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        own = seen[layer].repeat_interleave(q.shape[1] // len(seen[layer]), 0)
        scores = (q @ k.transpose(2, 3) * scaling).masked_fill(~own, float("-inf"))
        weights = scores.softmax(-1) if s_aux is None else _with_sinks(scores, s_aux)
        return (weights @ v).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, NAME, attend)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, NAME, eager_mask)
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    return model_class.from_pretrained(folder, attn_implementation=NAME).eval().float()


def _with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Return softmax of scores [B, H, T, T] and a logit for each head [H], without the logits' column."""
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


@torch.inference_mode()
def logits(model: Any, tokens: list[int]) -> Tensor:
    """Return a model's logits [T, V] after each token."""
    return model(torch.tensor([tokens])).logits[0]
