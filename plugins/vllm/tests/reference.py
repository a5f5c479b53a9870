"""SnapStream on a Llama in plain torch, written only to be compared with: lists of positions, no blocks.

Each layer and key-value head has a list of the positions that it keeps. A new token is appended, and the oldest one
that is not protected leaves if there are more than the budget.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor

SINKS, RECENT, WINDOW, KERNEL = 4, 32, 16, 31


def answer(
    folder: Path, prompt: Sequence[int], budget: int, count: int, allowed: Sequence[int] | None = None
) -> list[int]:
    """Return the greedy answer of so many tokens, all of which are `allowed`."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return _Cached(model, budget).answer(list(prompt), count, allowed or range(model.vocab_size))


class _Cached:
    def __init__(self, model: transformers.LlamaForCausalLM, budget: int) -> None:
        self.model, self.config, self.budget = model, model.config, budget
        self.heads, self.width = model.config.num_key_value_heads, model.config.head_dim
        self.keys: list[Tensor] = []  # by layer [H, tokens so far, D], rotated
        self.values: list[Tensor] = []
        self.kept: list[list[list[int]]] = []  # by layer and head, positions, those that never leave first
        self.protected = 0

    def answer(self, prompt: list[int], count: int, allowed: Sequence[int]) -> list[int]:
        logits, out = self._prefill(prompt), []
        for position in range(len(prompt), len(prompt) + count):
            out.append(allowed[int(logits[list(allowed)].argmax())])
            logits = self._step(out[-1], position)
        return out

    def _prefill(self, prompt: list[int]) -> Tensor:
        n, positions = len(prompt), torch.arange(len(prompt))
        x = self.model.model.embed_tokens(torch.tensor(prompt))
        causal = positions[:, None] >= positions
        selected = self.budget - SINKS - RECENT
        self.protected = SINKS + selected if n > self.budget else max(SINKS, min(n, SINKS + selected))
        for layer in self.model.model.layers:
            q, k, v = self._project(layer, x, positions)
            scores = (q @ k.transpose(-1, -2)[:, None] / self.width**0.5).masked_fill(~causal, float("-inf"))
            weights = scores.softmax(-1)  # [H, G, n, n]
            x = self._rest(layer, x, weights @ v[:, None])
            self.keys.append(k)
            self.values.append(v)
            self.kept.append([self._select(weights[head], n, selected) for head in range(self.heads)])
        return self._logits(x[-1:])

    def _select(self, weights: Tensor, n: int, selected: int) -> list[int]:
        if n <= self.budget:
            return list(range(n))
        votes = weights[:, -WINDOW:].sum(1).mean(0).tolist()
        low, high = SINKS, n - RECENT
        pooled = [max(votes[max(low, j - KERNEL // 2) : min(high, j + KERNEL // 2 + 1)]) for j in range(low, high)]
        best = sorted(range(low, high), key=lambda j: (-pooled[j - low], j))[:selected]
        return [*range(SINKS), *sorted(best), *range(high, n)]

    def _step(self, token: int, position: int) -> Tensor:
        x = self.model.model.embed_tokens(torch.tensor([token]))
        for number, layer in enumerate(self.model.model.layers):
            q, k, v = self._project(layer, x, torch.tensor([position]))
            self.keys[number] = torch.cat((self.keys[number], k), 1)
            self.values[number] = torch.cat((self.values[number], v), 1)
            attended = torch.stack([self._attend(number, head, q[head], position) for head in range(self.heads)])
            x = self._rest(layer, x, attended)
        return self._logits(x)

    def _attend(self, layer: int, head: int, q: Tensor, position: int) -> Tensor:
        """Return [G, 1, D]. The new token is kept, and may take the place of the oldest one."""
        kept = self.kept[layer][head]
        kept.append(position)
        if len(kept) > self.budget:
            del kept[self.protected]
        keys, values = self.keys[layer][head, kept], self.values[layer][head, kept]
        return (q @ keys.T / self.width**0.5).softmax(-1) @ values

    def _project(self, layer: torch.nn.Module, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [H, G, n, D], k and v [H, n, D], rotated."""
        normed, attention, half = layer.input_layernorm(x), layer.self_attn, self.width // 2
        q, k, v = (
            project(normed).view(len(x), -1, self.width).transpose(0, 1)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cos, sin = self.model.model.rotary_emb(x[None], positions[None])
        q, k = (each * cos + torch.cat((-each[..., half:], each[..., :half]), -1) * sin for each in (q, k))
        return q.view(self.heads, -1, len(x), self.width), k, v

    def _rest(self, layer: torch.nn.Module, x: Tensor, attended: Tensor) -> Tensor:
        """Return what a layer gives. attended [H, G, n, D]."""
        joined = attended.flatten(0, 1).transpose(0, 1).reshape(len(x), -1)
        x = x + layer.self_attn.o_proj(joined)
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.model.norm(x))[0]
        return logits
