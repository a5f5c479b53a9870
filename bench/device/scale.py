"""scale: the measured shapes, real ones on a device and tiny ones on the CPU."""

from dataclasses import dataclass
from typing import Any

import torch

from ringkv.base.cache_spec import PlaneFormat
from ringkv.models.config import ModelConfig, parse_config

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
TINY = LLAMA_31_8B | {
    "vocab_size": 199, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    model: str
    raw: dict[str, Any]  # the model's config.json
    prompt: int  # tokens of the longest prompt, for which staging is allocated
    budgets: tuple[int, ...]  # entries of a slot
    steps: int
    prefills: tuple[tuple[int, int], ...]  # (prompt tokens, chunk)
    probe_bytes: int
    reserve: int  # bytes for graphs, logits, sampling state and scratch
    dtype: str
    device: str
    memory: int | None  # bytes to fill; None: all free memory of the device
    backends: tuple[str, ...]  # by preference; the first that works is measured
    formats: tuple[PlaneFormat, ...]  # of slots of the smallest budget; the last one also of the full cache

    @property
    def config(self) -> ModelConfig:
        return parse_config(self.raw)

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    def free_memory(self) -> int:
        if self.memory is not None:
            return self.memory
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return int(free)


REAL = Scale(
    model="llama-3.1-8b, random weights",
    raw=LLAMA_31_8B,
    prompt=131072,
    budgets=(32768, 16384, 8192),
    steps=48,
    prefills=((2048, 2048), (32768, 2048), (131072, 2048)),
    probe_bytes=4 << 30,
    reserve=3 << 30,
    dtype="bfloat16",
    device="cuda:0",
    memory=None,
    backends=("inductor", "eager"),
    formats=("int8", "int4"),
)
SMALL = Scale(
    model="tiny, random weights",
    raw=TINY,
    prompt=1024,
    budgets=(256, 128),
    steps=4,
    prefills=((256, 64), (1024, 256)),
    probe_bytes=1 << 20,
    reserve=1 << 20,
    dtype="float32",
    device="cpu",
    memory=8 << 20,
    backends=("eager",),
    formats=("int8",),
)
SCALES = {"real": REAL, "small": SMALL}
