"""The families by architecture."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ringkv.models.base import ModelConfig
from ringkv.models.families.deepseek import deepseek
from ringkv.models.families.gemma3 import gemma3
from ringkv.models.families.gemma3n import gemma3n
from ringkv.models.families.gemma4 import gemma4
from ringkv.models.families.glm import glm4, glm4_moe
from ringkv.models.families.gpt_oss import gpt_oss
from ringkv.models.families.granite import granite
from ringkv.models.families.hunyuan import hunyuan
from ringkv.models.families.llama import llama, mistral, mixtral, phi3, smollm3
from ringkv.models.families.olmo2 import olmo
from ringkv.models.families.qwen import qwen2, qwen2_moe, qwen3, qwen3_moe
from ringkv.models.fields import Raw

Read = Callable[[Raw, Raw, str], ModelConfig]
"""Translates config.json and generation_config.json of an architecture. Raises BadWeights or UnsupportedModel."""


class Family(NamedTuple):
    """model_type: what config.json has if it names no architecture. example: a hub id of this architecture."""

    read: Read
    model_type: str
    example: str


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(llama, "llama", "meta-llama/Llama-3.1-8B-Instruct"),
    "MistralForCausalLM": Family(mistral, "mistral", "mistralai/Mistral-7B-Instruct-v0.3"),
    "Qwen2ForCausalLM": Family(qwen2, "qwen2", "Qwen/Qwen2.5-7B-Instruct"),
    "Qwen3ForCausalLM": Family(qwen3, "qwen3", "Qwen/Qwen3-4B"),
    "Gemma3ForCausalLM": Family(gemma3, "gemma3_text", "google/gemma-3-1b-it"),
    "Gemma3ForConditionalGeneration": Family(gemma3, "gemma3", "google/gemma-3-4b-it"),
    "Gemma3nForCausalLM": Family(gemma3n, "gemma3n_text", "google/gemma-3n-E4B-it"),
    "Gemma3nForConditionalGeneration": Family(gemma3n, "gemma3n", "google/gemma-3n-E4B-it"),
    "Gemma4ForCausalLM": Family(gemma4, "gemma4_text", "google/gemma-4-E2B-it"),
    "Gemma4ForConditionalGeneration": Family(gemma4, "gemma4", "google/gemma-4-E2B-it"),
    "Phi3ForCausalLM": Family(phi3, "phi3", "microsoft/Phi-4-mini-instruct"),
    "GraniteForCausalLM": Family(granite, "granite", "ibm-granite/granite-3.3-8b-instruct"),
    "GraniteMoeHybridForCausalLM": Family(granite, "granitemoehybrid", "ibm-granite/granite-4.0-1b"),
    "Olmo2ForCausalLM": Family(olmo, "olmo2", "allenai/OLMo-2-1124-7B-Instruct"),
    "Olmo3ForCausalLM": Family(olmo, "olmo3", "allenai/Olmo-3-7B-Instruct"),
    "SmolLM3ForCausalLM": Family(smollm3, "smollm3", "HuggingFaceTB/SmolLM3-3B"),
    "Glm4ForCausalLM": Family(glm4, "glm4", "zai-org/GLM-4-9B-0414"),
    "MixtralForCausalLM": Family(mixtral, "mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "DeepseekV2ForCausalLM": Family(deepseek, "deepseek_v2", "deepseek-ai/DeepSeek-V2-Lite-Chat"),
    "DeepseekV3ForCausalLM": Family(deepseek, "deepseek_v3", "deepseek-ai/DeepSeek-R1"),
    "Qwen2MoeForCausalLM": Family(qwen2_moe, "qwen2_moe", "Qwen/Qwen1.5-MoE-A2.7B-Chat"),
    "Qwen3MoeForCausalLM": Family(qwen3_moe, "qwen3_moe", "Qwen/Qwen3-30B-A3B"),
    "Glm4MoeForCausalLM": Family(glm4_moe, "glm4_moe", "zai-org/GLM-4.5-Air"),
    "GptOssForCausalLM": Family(gpt_oss, "gpt_oss", "openai/gpt-oss-20b"),
    "HunYuanForCausalLM": Family(hunyuan, "hunyuan", "tencent/Tencent-Hunyuan-Large"),
    "HunYuanDenseV1ForCausalLM": Family(hunyuan, "hunyuan_v1_dense", "tencent/Hunyuan-7B-Instruct"),
    "HunYuanMoEV1ForCausalLM": Family(hunyuan, "hunyuan_v1_moe", "tencent/Hunyuan-A13B-Instruct"),
}
