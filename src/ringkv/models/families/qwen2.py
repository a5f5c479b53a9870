"""Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on queries, keys and values."""

from dataclasses import dataclass

from ringkv.models.base import LOCAL, ModelConfig, Sliding
from ringkv.models.fields import Raw, count, flag
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import SILU, common, refuse, rope, sliding, window

FIRST_LOCAL = 28  # max_window_layers if config.json leaves it out


@dataclass(frozen=True, kw_only=True)
class Qwen2(ModelConfig):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Qwen2":
        refuse(raw, SILU)
        fields = common(raw, generation, "Qwen2ForCausalLM", kv_heads=32)
        return cls(**fields, rope=rope(raw), sliding=qwen_sliding(raw))

    def layer(self, kind: str) -> Layer:
        return Layer(
            Attention(self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim, bias=True),
            FeedForward(self.hidden_size, self.intermediate_size),
            self.norm,
            self.rope,
            window=self.sliding.window if self.sliding and kind == LOCAL else None,
        )


def qwen_sliding(raw: Raw) -> Sliding | None:
    """The layers from `max_window_layers` on have a sliding window, if `use_sliding_window` is set."""
    if not flag(raw, "use_sliding_window"):
        return None
    given = raw.get("max_window_layers")
    first = FIRST_LOCAL if given is None else 0 if given == 0 else count(raw, "max_window_layers")
    return sliding(raw, window(raw), lambda layer: layer >= first)
