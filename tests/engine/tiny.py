"""Tiny random checkpoints made by transformers, and the same model in ours; for tests."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ringkv.base.cache_spec import SlotFormat
from ringkv.base.config import EngineConfig
from ringkv.base.engine import prefill
from ringkv.base.events import Token
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import Selector, SnapKV
from ringkv.engine.engine import LocalEngine
from ringkv.machine.folders import cache_dir
from ringkv.scheduler.loop import Loop

SIZES = {
    "vocab_size": 199,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save(folder: Path, kind: str, **changes: Any) -> torch.nn.Module:
    """Save a random model of `kind` ("Llama", "Qwen2" ...) to `folder` and return transformers' own instance."""
    torch.manual_seed(7)
    config_class = getattr(transformers, f"{kind}ForCausalLM").config_class
    config = config_class(**{**SIZES, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases start out trivial, which would hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.05)
        stored = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in stored:
                buffer.add_(torch.randn_like(buffer) * 0.05)
    model.save_pretrained(folder)
    return model


def save_all(factory: pytest.TempPathFactory, models: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Path]:
    """Save models, each of a kind with changes, and return their folders."""
    folders = {name: factory.mktemp(name) for name in models}
    for name, (kind, changes) in models.items():
        save(folders[name], kind, **changes)
    return folders


def config(folder: Path, **changes: Any) -> EngineConfig:
    """A small engine's configuration: three slots of 64 entries, chunks of 16, float32, eager.

    Slots are plain, and have what the choice needs.
    """
    kv = changes.get("kv", KVChoice("snapstream", budget=64, sinks=4, recent=16, select=SnapKV(window=8)))
    reading = "everything" if kv.heads == "equal" else "ragged"
    usual: dict[str, Any] = {
        "model_dir": folder,
        "kv": kv,
        "slot_format": SlotFormat(reading=reading, queries=kv.review_interval),
        "slots": 3,
        "capacity": 64,
        "prompt_tokens": 256,
        "chunk": 16,
        "lanes": 1,
        "dtype": "float32",
        "weights": "bf16",
        "device": "cpu",
        "graphs": "off",
        "threads": 2,
        "cache_dir": cache_dir(),
    }
    return EngineConfig(**{**usual, **changes})


def choice(policy: str, select: Selector = SnapKV(window=8), **changes: Any) -> KVChoice:  # noqa: B008 - frozen
    """A choice for 64 entries, of which the paper's fixed layout leaves room to decode."""
    return KVChoice(policy, **{"budget": 64, "sinks": 4, "recent": 16, "select": select, **changes})


def kept(engine: LocalEngine, asked: Request) -> np.ndarray:
    """int64 [L, H, live]: the prompt token that each entry of the slot holds once the prompt is compressed."""
    prefill(engine, asked)
    return np.stack(engine.kept(0, asked.kv or engine.default_kv))


def prompt(n: int, seed: int = 0) -> list[int]:
    """Random tokens, none of them special."""
    return Random(seed).choices(range(3, SIZES["vocab_size"]), k=n)


def request(tokens: list[int], name: str = "r", kv: KVChoice | None = None, **sampling: Any) -> Request:
    return Request(name, tuple(tokens), SamplingParams(**sampling), kv)


def stage(engine: LocalEngine, asked: Request, lane: int = 0) -> torch.Tensor:
    """Prefill a whole prompt, chunk by chunk: the logits after it, float32 [V]."""
    prefill(engine, asked, lane)
    return engine.lanes.logits(lane)


def enter(engine: LocalEngine, asked: Request, slot: int = 0) -> None:
    """Prefill, compress under the request's choice, insert."""
    prefill(engine, asked)
    engine.insert(0, slot, asked)


def decode(
    engine: LocalEngine, steps: int, slot: int = 0, forced: list[int] | None = None
) -> tuple[list[int], torch.Tensor]:
    """Decode some steps: the tokens of one slot, and the logits [steps, V] that each was sampled from."""
    tokens, logits = [], []
    for step in range(steps):
        logits.append(engine.batch.logits[slot].clone())
        draw = engine.sample({slot: forced[step]} if forced else None)
        ((token, _),) = draw.read()[slot]
        assert token is not None
        tokens.append(token)
        engine.forward()
    return tokens, torch.stack(logits)


def serve(engine: LocalEngine, *sharing: Request) -> dict[str, list[int]]:
    """Serve requests that share a prompt to their end: each one's tokens."""
    loop, tokens = Loop(engine), {one.id: [] for one in sharing}
    events = loop.submit(*sharing)
    while not loop.idle:
        events += loop.step()
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
    return tokens
