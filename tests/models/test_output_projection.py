"""The output projection by head: its heads' products add up to the whole one's."""

from dataclasses import replace

import pytest
import torch

from ringkv.kernels.formats import FORMATS, unpack
from ringkv.kernels.mix import hadamard
from ringkv.models.layer import Attention
from ringkv.models.output_projection import output_by_head

BLOCK = Attention(hidden=64, heads=4, kv_heads=2, head_dim=16)


@pytest.mark.parametrize("rotated", [1, 2, 4])
@pytest.mark.parametrize("format", ["plain", "int8", "int4", "w8a8", "w4a8"])
def test_products_of_the_heads_add_up_to_those_of_the_whole_matrix(format: str, rotated: int) -> None:
    plain = torch.randn(64, 64).bfloat16()
    weight = plain if format == "plain" else FORMATS[format].pack(plain)
    heads = output_by_head(replace(BLOCK, rotated_heads=rotated), weight).float()
    out = torch.randn(5, 2, 2, 16)
    mixed = out.flatten(1) if rotated == 1 else hadamard(out.flatten(1), rotated, 16)
    want = mixed @ unpack(weight).float().T
    torch.testing.assert_close(torch.einsum("nhgd,hgdo->no", out, heads), want, atol=1e-3, rtol=1e-3)
