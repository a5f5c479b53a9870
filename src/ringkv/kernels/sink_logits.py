"""sink_logits: a learned logit of each query head joins the softmax's denominator (gpt-oss, arXiv 2508.10925).

The logit has no value, so attention over the keys is scaled by the share of the denominator that the keys have. N rows,
H key-value heads, G query heads per key-value head, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.attended import Attended
from ringkv.kernels.library import like_first, register


def add_sink_logits(attended: Attended, sinks: Tensor) -> Tensor:
    """Return out * sigmoid(lse - sinks), [N, H, G, D] in out's dtype.

    attended: out [N, H, G, D] and lse [N, H, G] of attention to the keys alone. sinks: float32 [H * G]. A row without
    keys stays 0.
    """
    if sinks.is_cuda:  # traced, so that Inductor fuses it
        return reference(*attended, sinks)
    out: Tensor = torch.ops.ringkv.add_sink_logits(*attended, sinks)
    return out


def reference(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Implement `add_sink_logits` in plain torch."""
    share = torch.sigmoid(lse - sinks.view(lse.shape[1:]))
    return (out.float() * share[..., None]).to(out.dtype)


register("add_sink_logits", reference, like_first)
