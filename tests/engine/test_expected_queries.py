"""The first review of an engine, compared with the paper's formula over transformers' queries, keys and frequencies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.cache.calibrated_body import CalibratedBody
from ringkv.cache.watching.triattention import OFFSETS
from ringkv.engine.build import build
from ringkv.engine.calibrate import calibrate
from ringkv.machine.paths import cache_dir
from ringkv.weights.query_statistics import path_of
from tests.engine import tiny
from tests.engine.test_golden import LINEAR, LLAMA3, MODELS, YARN

HEADS, GROUPS, WIDTH, CAPACITY, REVIEW, SINKS, RECENT = 2, 3, 32, 64, 16, 4, 16
KV = tiny.choice("triattention", review=REVIEW)
WINDOW, TOKENS = tiny.prompt(200, 5), tiny.prompt(CAPACITY, 6)
MODEL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "linear": ("Llama", {"rope_parameters": LINEAR}),
    "partial-pairs": MODELS["glm4"],
    "one-layer-does-not-rotate": MODELS["smollm3"],
}


def projected(model: Any, module: str, tokens: list[int]) -> list[Tensor]:
    """Return float64 [tokens, elements] of each layer's module."""
    found: list[Tensor] = []
    layers = [layer.self_attn.get_submodule(module) for layer in model.model.layers]
    hooks = [one.register_forward_hook(lambda _, inputs, out: found.append(out[0].double())) for one in layers]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return found


def complex_pairs(name: str, layer: int, vectors: Tensor) -> Tensor:
    """Return vectors [..., D] as complex numbers: a pair of elements that rotate, or an element that does not."""
    if name == "one-layer-does-not-rotate" and layer == 3:
        return vectors.to(torch.complex128)
    if name == "partial-pairs":
        rotated = torch.complex(vectors[..., 0:16:2], vectors[..., 1:16:2])
        return torch.cat((rotated, vectors[..., 16:].to(torch.complex128)), -1)
    return torch.complex(*vectors.chunk(2, -1))


def kept(queries: Tensor, keys: Tensor, frequencies: Tensor) -> list[set[int]]:
    """Return the positions that each head keeps, of queries [N, H, G, F] and keys [n, H, F]."""
    mean, length, n = queries.mean(0), queries.abs().mean(0), len(keys)
    distance = (n - 1 - torch.arange(n))[:, None] + torch.tensor(OFFSETS)
    angles = distance[:, :, None].double() * frequencies
    found, may_go = [], slice(SINKS, CAPACITY - RECENT)
    for head in range(HEADS):
        worth = []
        for group in range(GROUPS):
            product = mean[head, group] * keys[:, head].conj()
            waves = (product.abs()[:, None] * torch.cos(angles + product.angle()[:, None])).mean(1)
            spread = (length - mean.abs())[head, group] * keys[:, head].abs()
            scores = (waves + spread).sum(-1)[may_go]
            worth.append((scores - scores.mean()) / scores.std(correction=0))
        best = torch.stack(worth).amax(0)
        gone = {SINKS + at for at in best.argsort()[:REVIEW].tolist()}
        found.append(set(range(n)) - gone)
    return found


@pytest.mark.parametrize("name", MODEL)
def test_the_first_review_keeps_what_the_paper_keeps(name: str, tmp_path: Path) -> None:
    kind, changes = MODEL[name]
    model, path = tiny.save(tmp_path, kind, **changes), path_of(tmp_path, cache_dir())
    try:
        calibrate(build(tiny.config(tmp_path)).lanes, [WINDOW], path, "random")
        engine = build(tiny.config(tmp_path, kv=KV))
    finally:
        path.unlink(missing_ok=True)
    tiny.enter(engine, tiny.request(TOKENS[:40], kv=KV), slot=1)
    tiny.decode(engine, CAPACITY - 40 + 1, slot=1, forced=[*TOKENS[40:], 7])
    (body,) = engine.batch.bodies
    assert isinstance(body, CalibratedBody)

    queries, keys = (projected(model, one, text) for one, text in (("q_proj", WINDOW), ("k_proj", TOKENS)))
    inverse = model.model.rotary_emb.inv_freq.double()
    for layer, (q, k) in enumerate(zip(queries, keys, strict=True)):
        n = CAPACITY - (len(keys) - 1 - layer)  # layers take turns, the last one when the slot is due
        pairs = complex_pairs(name, layer, q.view(-1, HEADS, GROUPS, WIDTH))
        frequencies = torch.zeros(pairs.shape[-1], dtype=torch.float64)
        if not (name == "one-layer-does-not-rotate" and layer == 3):
            frequencies[: len(inverse)] = inverse
        want = kept(pairs, complex_pairs(name, layer, k.view(-1, HEADS, WIDTH)[:n]), frequencies)
        found = body.positions[layer, 1, :, : n - REVIEW].tolist()
        assert [set(row) for row in found] == want
