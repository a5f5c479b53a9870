"""The families by architecture, and by model_type if config.json names no architecture."""

from collections.abc import Mapping
from typing import Protocol

from ringkv.models.base import ModelConfig
from ringkv.models.families.gemma3 import Gemma3, Gemma3WithImages
from ringkv.models.families.llama import Llama
from ringkv.models.families.mistral import Mistral
from ringkv.models.families.qwen2 import Qwen2
from ringkv.models.families.qwen3 import Qwen3
from ringkv.models.fields import Raw


class Family(Protocol):
    def read(self, raw: Raw, generation: Raw) -> ModelConfig:
        """Translate config.json and generation_config.json. Raises BadWeights or UnsupportedModel."""


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Gemma3ForCausalLM": Gemma3,
    "Gemma3ForConditionalGeneration": Gemma3WithImages,
}
MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
}
