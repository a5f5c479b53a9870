"""The families by architecture, and by model_type if config.json names no architecture."""

from collections.abc import Mapping
from typing import Protocol

from ringkv.models.base import ModelConfig
from ringkv.models.families.deepseek import DeepSeekV2, DeepSeekV3
from ringkv.models.families.gemma3 import Gemma3, Gemma3WithImages
from ringkv.models.families.gemma3n import Gemma3n, Gemma3nWithImages
from ringkv.models.families.gemma4 import Gemma4, Gemma4WithImages
from ringkv.models.families.glm4 import Glm4
from ringkv.models.families.glm4_moe import Glm4Moe
from ringkv.models.families.gpt_oss import GptOss
from ringkv.models.families.granite import Granite, Granite4
from ringkv.models.families.hunyuan import FirstHunYuan, HunYuan, HunYuanMoe
from ringkv.models.families.llama import Llama
from ringkv.models.families.mistral import Mistral
from ringkv.models.families.mixtral import Mixtral
from ringkv.models.families.olmo2 import Olmo2, Olmo3
from ringkv.models.families.phi3 import Phi3
from ringkv.models.families.qwen2 import Qwen2
from ringkv.models.families.qwen2_moe import Qwen2Moe
from ringkv.models.families.qwen3 import Qwen3
from ringkv.models.families.qwen3_moe import Qwen3Moe
from ringkv.models.families.smollm3 import SmolLM3
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
    "Gemma3nForCausalLM": Gemma3n,
    "Gemma3nForConditionalGeneration": Gemma3nWithImages,
    "Gemma4ForCausalLM": Gemma4,
    "Gemma4ForConditionalGeneration": Gemma4WithImages,
    "Phi3ForCausalLM": Phi3,
    "GraniteForCausalLM": Granite,
    "GraniteMoeHybridForCausalLM": Granite4,
    "Olmo2ForCausalLM": Olmo2,
    "Olmo3ForCausalLM": Olmo3,
    "SmolLM3ForCausalLM": SmolLM3,
    "Glm4ForCausalLM": Glm4,
    "MixtralForCausalLM": Mixtral,
    "DeepseekV2ForCausalLM": DeepSeekV2,
    "DeepseekV3ForCausalLM": DeepSeekV3,
    "Qwen2MoeForCausalLM": Qwen2Moe,
    "Qwen3MoeForCausalLM": Qwen3Moe,
    "Glm4MoeForCausalLM": Glm4Moe,
    "GptOssForCausalLM": GptOss,
    "HunYuanForCausalLM": FirstHunYuan,
    "HunYuanDenseV1ForCausalLM": HunYuan,
    "HunYuanMoEV1ForCausalLM": HunYuanMoe,
}
MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "hunyuan": "HunYuanForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
}
EXAMPLES = {  # hub ids, for those whose model is refused
    "LlamaForCausalLM": "meta-llama/Llama-3.1-8B-Instruct",
    "MistralForCausalLM": "mistralai/Mistral-7B-Instruct-v0.3",
    "Qwen2ForCausalLM": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen3ForCausalLM": "Qwen/Qwen3-4B",
    "Gemma3ForCausalLM": "google/gemma-3-1b-it",
    "Gemma3ForConditionalGeneration": "google/gemma-3-4b-it",
    "Gemma3nForCausalLM": "google/gemma-3n-E4B-it",
    "Gemma3nForConditionalGeneration": "google/gemma-3n-E4B-it",
    "Gemma4ForCausalLM": "google/gemma-4-E2B-it",
    "Gemma4ForConditionalGeneration": "google/gemma-4-E2B-it",
    "Phi3ForCausalLM": "microsoft/Phi-4-mini-instruct",
    "GraniteForCausalLM": "ibm-granite/granite-3.3-8b-instruct",
    "GraniteMoeHybridForCausalLM": "ibm-granite/granite-4.0-1b",
    "Olmo2ForCausalLM": "allenai/OLMo-2-1124-7B-Instruct",
    "Olmo3ForCausalLM": "allenai/Olmo-3-7B-Instruct",
    "SmolLM3ForCausalLM": "HuggingFaceTB/SmolLM3-3B",
    "Glm4ForCausalLM": "zai-org/GLM-4-9B-0414",
    "MixtralForCausalLM": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "DeepseekV2ForCausalLM": "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "DeepseekV3ForCausalLM": "deepseek-ai/DeepSeek-R1",
    "Qwen2MoeForCausalLM": "Qwen/Qwen1.5-MoE-A2.7B-Chat",
    "Qwen3MoeForCausalLM": "Qwen/Qwen3-30B-A3B",
    "Glm4MoeForCausalLM": "zai-org/GLM-4.5-Air",
    "GptOssForCausalLM": "openai/gpt-oss-20b",
    "HunYuanForCausalLM": "tencent/Tencent-Hunyuan-Large",
    "HunYuanDenseV1ForCausalLM": "tencent/Hunyuan-7B-Instruct",
    "HunYuanMoEV1ForCausalLM": "tencent/Hunyuan-A13B-Instruct",
}
