"""What combines with the plug-in: graphs, ranks, adapters and grammars. ringkv's own engine is a second reference."""

import json
import string
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import reference
import torch
import transformers
from safetensors.torch import save_file
from tiny import BUDGET, COUNT, answers, prompts, started
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

import ringkv

RANK, ALPHA = 8, 16


@pytest.mark.parametrize("changes", [{"enforce_eager": False}, {"tensor_parallel_size": 2}], ids=["compiled", "ranks"])
def test_tokens_are_those_of_the_reference(
    folder: Path, expected: list[list[int]], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "|".join("01"[: changes.get("tensor_parallel_size", 1)]))
    with started(folder, **changes) as llm:
        assert answers(llm) == expected


def test_tokens_are_those_of_ringkv(folder: Path, expected: list[list[int]]) -> None:
    choices = {"kv_budget": BUDGET, "kv_recent": 32, "kv_window": 16, "dtype": "float32", "graphs": "off"}
    engine = ringkv.LLM(folder, slots=4, **choices)
    params = ringkv.SamplingParams(max_tokens=COUNT, ignore_eos=True)
    assert [list(result.token_ids) for result in engine.generate(prompts(), params, progress=False)] == expected


def test_an_adapter_gives_what_its_merged_weights_give(folder: Path, tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapter, names = {}, ("q_proj", "v_proj")
    for number, layer in enumerate(model.model.layers):
        for name in names:
            weight = getattr(layer.self_attn, name).weight
            down, up = torch.randn(RANK, weight.shape[1]) * 0.1, torch.randn(weight.shape[0], RANK) * 0.1
            stem = f"base_model.model.model.layers.{number}.self_attn.{name}"
            adapter |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
            weight.data += ALPHA / RANK * up @ down
    model.save_pretrained(tmp_path / "merged")
    (tmp_path / "adapter").mkdir()
    save_file(adapter, tmp_path / "adapter" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": names, "bias": "none"}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with started(folder, enable_lora=True, max_lora_rank=RANK) as llm:
        got = answers(llm, lora_request=LoRARequest("adapter", 1, str(tmp_path / "adapter")))
    assert got == [reference.answer(tmp_path / "merged", prompt, BUDGET, COUNT) for prompt in prompts()]


def test_a_grammar_masks_the_tokens_of_a_compressed_cache(folder: Path) -> None:
    letters = string.ascii_lowercase[:6]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    params = SamplingParams(
        temperature=0,
        max_tokens=COUNT,
        structured_outputs=StructuredOutputsParams(regex=f"[{letters}]{{{COUNT + 1}}}"),
    )
    with started(folder, skip_tokenizer_init=False) as llm:
        got = answers(llm, params)
    allowed = tokenizer.convert_tokens_to_ids(list(letters))
    assert got == [reference.answer(folder, prompt, BUDGET, COUNT, allowed) for prompt in prompts()]
