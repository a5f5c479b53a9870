"""output_projection: the matrix by which each query head adds its result to the hidden state.

H key-value heads, G query heads each, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.formats import unpack
from ringkv.kernels.mix import mixed
from ringkv.models.layer import Attention


def output_by_head(block: Attention, weight: Tensor) -> Tensor:
    """Return [H, G, D, hidden], plain and transposed, of a layer's weight `output` [hidden, H G D], plain or packed.

    If a Hadamard matrix mixes the heads before the product, the matrices have it in them.
    """
    matrix = unpack(weight).T
    if block.rotated_heads > 1:
        unit = torch.eye(block.rotated_heads, device=matrix.device)
        heads = matrix.float().reshape(-1, block.rotated_heads, block.head_dim * matrix.shape[1])
        matrix = (mixed(unit, block.rotated_heads) @ heads).view_as(matrix)
    return matrix.reshape(block.kv_heads, -1, block.head_dim, matrix.shape[1])
