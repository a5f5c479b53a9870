"""Calibration: the hidden states of a text between layers, and the Hessians of a layer's matrices.

W windows of T tokens, I inputs of a matrix.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ringkv.kernels.attended import Attended
from ringkv.models.decoder import Decoder

MATRICES = ("qkv", "output", "gate_up", "down")


class Calibration:
    """hidden: float32 [W, T, hidden], before the next layer."""

    def __init__(self, decoder: Decoder, hidden: Tensor) -> None:
        self._decoder, self.hidden = decoder, hidden

    @classmethod
    def of(cls, decoder: Decoder, embedding: Tensor, windows: Sequence[Sequence[int]]) -> "Calibration":
        """Embed windows of equal length. embedding: [vocab, hidden]."""
        tokens = torch.tensor(windows)
        hidden = decoder.embed(tokens.flatten(), {"embed": embedding}).x.float()
        return cls(decoder, hidden.view(*tokens.shape, -1))

    def hessians(self, kind: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum of x x^T over the inputs of each matrix of a layer, float32 [I, I]."""
        inputs = _Inputs({name: weights[name] for name in MATRICES})
        with inputs:
            for window in self.hidden:
                self._run(kind, window, weights)
        return inputs.sums

    def advance(self, kind: str, weights: Mapping[str, Tensor]) -> None:
        """Replace the hidden states by those after a layer."""
        for window in self.hidden:
            window.copy_(self._run(kind, window, weights))

    def _run(self, kind: str, hidden: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        layer, angles = self._decoder.layers[kind], self._decoder.rotation(kind, torch.arange(len(hidden)))

        def attend(q: Tensor, k: Tensor | None, v: Tensor | None, _: object = None) -> Attended:
            assert k is not None
            assert v is not None
            return _causal(q, k, v, layer.attention.cache.scale, layer.window)

        return self._decoder.layer(kind, hidden, angles, weights, attend)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Attended:
    """Attend from q [T, H, G, D] to k and v [T, H, D] of the same tokens and those before, at most `window`."""
    position = torch.arange(len(q))
    seen = (position <= position[:, None]) & (position > position[:, None] - (window or len(q)))
    keys, values = (tensor.movedim(0, 1).repeat_interleave(q.shape[2], 0) for tensor in (k, v))
    out = F.scaled_dot_product_attention(q.movedim(0, 2).flatten(0, 1), keys, values, attn_mask=seen, scale=scale)
    return Attended(out.unflatten(0, q.shape[1:3]).movedim(2, 0), out.new_empty(0))


class _Inputs(TorchFunctionMode):
    """Adds x x^T of each product with some matrices to a sum while it is active."""

    def __init__(self, matrices: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(matrix): name for name, matrix in matrices.items()}
        self.sums = {name: matrix.new_zeros(matrix.shape[1], matrix.shape[1]) for name, matrix in matrices.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and (name := self._names.get(id(args[1]))):
            self.sums[name].addmm_(args[0].T, args[0])
        return func(*args, **(kwargs or {}))
