"""Latent attention and experts in a whole engine: our operators, compiled graphs, one selection for all heads."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.events import Token
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.machine.compiler import missing_for_graphs
from ringkv.scheduler.loop import Loop
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.engine.test_golden import EXPERTS, GEMMA3N, GEMMA4, GEMMA4_MOE, GPT_OSS, GROUPED, LATENT

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 224}  # every matrix can be packed
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek": ("DeepseekV3", LATENT | SMALL | {"q_lora_rank": 64, "v_head_dim": 32, "first_k_dense_replace": 0}),
    "glm4-moe": ("Glm4Moe", GROUPED | SMALL),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | SMALL | {"shared_expert_intermediate_size": 64}),
    "gpt-oss": ("GptOss", GPT_OSS | SMALL),
}
UNSCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3n": ("Gemma3n", GEMMA3N | {"vocab_size": 224, "hidden_size_per_layer_input": 32}),
    "gemma4": ("Gemma4", GEMMA4 | {"vocab_size": 224, "hidden_size_per_layer_input": 32}),
    "gemma4-moe": ("Gemma4", GEMMA4_MOE | {"vocab_size": 224}),
}
SELECTORS = (SnapKV(window=8), TOVA(), KeyDiff(), KVzip())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.save_all(tmp_path_factory, MODELS)


def answers(engine: LocalEngine, *prompts: list[int]) -> list[list[int]]:
    """Serve prompts at once: the tokens of each answer."""
    loop, tokens = Loop(engine), {f"r{at}": [] for at in range(len(prompts))}
    events = [
        event for at, one in enumerate(prompts) for event in loop.submit(tiny.request(one, f"r{at}", max_tokens=12))
    ]
    while not loop.idle:
        events += loop.step()
    for event in events:
        if isinstance(event, Token):
            tokens[event.request_id].append(event.token)
    return list(tokens.values())


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_packed_weights_give_nearly_the_logits_of_float32(name: str, weights: str, folders: dict[str, Path]) -> None:
    asked = tiny.request(prompt(60))
    want = tiny.stage(build(tiny.config(folders[name])), asked)
    engine = build(tiny.config(folders[name], dtype="bfloat16", weights=weights))
    cosine = torch.nn.functional.cosine_similarity(tiny.stage(engine, asked).float(), want, dim=0)
    assert cosine > {"bf16": 0.995, "int8": 0.99, "int4": 0.9}[weights]


@pytest.mark.parametrize("name", UNSCALED)
def test_packed_gemmas_are_nearer_to_float32_than_transformers_in_bfloat16(name: str, tmp_path: Path) -> None:
    """Random models with unscaled scores round much: attention is nearly to one token."""
    kind, changes = UNSCALED[name]
    theirs, asked = tiny.save(tmp_path, kind, **changes), tiny.request(prompt(60))
    want = tiny.stage(build(tiny.config(tmp_path)), asked)
    with torch.inference_mode():
        rounded = theirs.bfloat16()(torch.tensor([asked.tokens])).logits[0, -1].float()

    def nearness(logits: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(logits, want, dim=0))

    engines = {how: build(tiny.config(tmp_path, dtype="bfloat16", weights=how)) for how in ("bf16", "int8", "int4")}
    near = {how: nearness(tiny.stage(engine, asked).float()) for how, engine in engines.items()}
    assert near["bf16"] > nearness(rounded)
    assert near["int8"] > 0.9
    assert near["int4"] > 0.7


@pytest.mark.slow
@pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))
@pytest.mark.parametrize("kv_format", ["plain", "int4"])
def test_compiled_graphs_give_the_tokens_of_plain_calls_alone_and_beside_others(
    kv_format: PlaneFormat, folders: dict[str, Path]
) -> None:
    prompts = [prompt(90), prompt(40), prompt(150)]
    compiled, plain = (
        build(tiny.config(folders["deepseek"], dtype="bfloat16", slot_format=SlotFormat(kv_format), graphs=graphs))
        for graphs in ("compiled", "off")
    )
    assert compiled.limits.packs
    together = answers(compiled, *prompts)
    assert together == answers(plain, *prompts)
    assert together == [answers(compiled, one)[0] for one in prompts]


def test_latents_take_one_plane_of_rank_and_rotated_key(folders: dict[str, Path]) -> None:
    engine = build(tiny.config(folders["deepseek"], dtype="bfloat16"))
    assert engine.limits.entry_bytes == 2 * (32 + 32) * 2  # layers, elements, bytes


@pytest.mark.parametrize("select", SELECTORS, ids=lambda select: type(select).__name__)
def test_each_layer_of_latents_has_one_selection(select: Selector, folders: dict[str, Path]) -> None:
    engine = build(tiny.config(folders["deepseek"]))
    kept = tiny.kept(engine, tiny.request(prompt(150), kv=tiny.choice("snapstream", select)))
    assert kept.shape == (2, 1, 64)
    assert all(len(set(layer[0])) == 64 for layer in kept)


@pytest.mark.parametrize("policy", ["streaming", "snapkv", "snapstream"])
def test_policies_and_protected_spans_serve_latents(policy: str, folders: dict[str, Path]) -> None:
    kv = tiny.choice(policy, protect=() if policy == "streaming" else ((20, 30),))
    engine = build(tiny.config(folders["deepseek"]))
    tiny.enter(engine, tiny.request(prompt(150), kv=kv))
    tokens, logits = tiny.decode(engine, 8)
    assert len(tokens) == 8
    assert logits.isfinite().all()
