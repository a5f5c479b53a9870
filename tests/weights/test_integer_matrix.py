"""Matrices of AWQ, GPTQ and compressed-tensors, against their published formula on integers before they are packed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ringkv.base.errors import BadWeights
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.files import SINGLE
from tests.weights.tiny_quantised import IN_4_BITS, PERMUTED, QUANTISERS, Made, Quantiser, gptq

OUT, IN, GROUP = 72, 256, 64
NAME = "layer.weight"


def saved(folder: Path, tensors: dict[str, Tensor], settings: Any) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    save_file({f"layer.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}, folder / SINGLE)
    return Checkpoint(folder)


def opened(folder: Path, quantiser: Quantiser, group: int = GROUP) -> tuple[Checkpoint, Made]:
    torch.manual_seed(3)
    made = quantiser.make(OUT, IN, group)
    return saved(folder, made.tensors, quantiser.settings), made


@pytest.mark.parametrize("name", QUANTISERS)
def test_every_slice_has_the_elements_of_the_formula(name: str, tmp_path: Path) -> None:
    checkpoint, made = opened(tmp_path, QUANTISERS[name])
    checkpoint.check({NAME: (OUT, IN)})
    for first, rows, column, columns in ((0, OUT, 0, IN), (8, 32, 64, 128), (13, 30, 37, 100), (71, 1, 255, 1)):
        out = torch.full((rows, columns), torch.nan)
        checkpoint.read_into(NAME, out, first, column=column)
        assert torch.equal(out, made.weight[first : first + rows, column : column + columns])


@pytest.mark.parametrize("group", [32, 64, IN])
@pytest.mark.parametrize("name", IN_4_BITS)
def test_groups_of_32_have_the_integers_and_the_scales_as_they_are(name: str, group: int, tmp_path: Path) -> None:
    checkpoint, made = opened(tmp_path, QUANTISERS[name], group)
    rows, columns = slice(13, 60), slice(32, 224)
    found = checkpoint.groups(NAME, rows, columns)
    assert found is not None
    scale, zero = (one[rows, columns][:, ::32] for one in (made.scale, made.zero))
    assert torch.equal(found.q.long(), made.q[rows, columns])
    assert torch.equal(found.scale.float(), scale)
    assert torch.equal(found.minimum, (-scale * zero).half())


@pytest.mark.parametrize("name", sorted(set(QUANTISERS) - set(IN_4_BITS)))
def test_permuted_groups_and_integers_of_8_bits_are_not_groups_of_32(name: str, tmp_path: Path) -> None:
    assert opened(tmp_path, QUANTISERS[name])[0].groups(NAME) is None


@pytest.mark.parametrize("columns", [slice(16, 80), slice(0, 48)])
def test_columns_that_begin_or_end_inside_of_32_are_not_groups(columns: slice, tmp_path: Path) -> None:
    assert opened(tmp_path, QUANTISERS["awq"])[0].groups(NAME, slice(None), columns) is None


@pytest.mark.parametrize(
    "quantiser",
    [
        QUANTISERS["signed"],
        QUANTISERS["packed-8"],
        Quantiser(QUANTISERS["gptq-8"].settings, gptq(bits=8, symmetric=True)),
    ],
)
def test_rows_of_one_group_in_8_bits_have_the_integers_except_the_lowest(quantiser: Quantiser, tmp_path: Path) -> None:
    """The int8 format has no -128, which is stored as -127."""
    checkpoint, made = opened(tmp_path, quantiser, IN)
    found, q = checkpoint.int8_rows(NAME, slice(5, 50), slice(0, 100)), (made.q - made.zero)[5:50, :100]
    assert found is not None
    assert (q == -128).any()
    assert torch.equal(found.q.long(), q.clamp(min=-127))
    assert torch.equal(found.scale, made.scale[5:50, 0])


@pytest.mark.parametrize("name", ["awq", "signed-asymmetric", "packed-8"])
def test_matrices_of_several_groups_or_with_zeros_are_not_8_bit_rows(name: str, tmp_path: Path) -> None:
    assert opened(tmp_path, QUANTISERS[name])[0].int8_rows(NAME) is None


def test_a_bias_of_zeros_that_the_model_does_not_have_is_left_out(tmp_path: Path) -> None:
    made, settings = QUANTISERS["gptq"].make(OUT, IN, GROUP), QUANTISERS["gptq"].settings
    saved(tmp_path, {**made.tensors, "bias": torch.zeros(OUT)}, settings).check({NAME: (OUT, IN)})
    with pytest.raises(BadWeights, match=r"layer\.bias"):
        saved(tmp_path, {**made.tensors, "bias": torch.ones(OUT)}, settings).check({NAME: (OUT, IN)})


@pytest.mark.parametrize(
    ("name", "suffix", "wrong"),
    [
        ("awq", "qzeros", torch.zeros(3, OUT // 8, dtype=torch.int32)),
        ("awq", "scales", torch.ones(IN // GROUP, OUT, dtype=torch.int8)),
        ("gptq", "qweight", torch.zeros(IN // 8, OUT - 8, dtype=torch.int32)),
        ("gptq", "g_idx", torch.full((IN,), 4, dtype=torch.int32)),
        ("gptq", "g_idx", torch.zeros(IN - 1, dtype=torch.int32)),
        ("packed", "weight_shape", torch.tensor([OUT, IN + 1])),
        ("packed", "weight_scale", torch.ones(OUT)),
        ("packed-asymmetric", "weight_zero_point", torch.zeros(OUT, IN // GROUP, dtype=torch.int32)),
        ("signed", "weight_scale", torch.ones(OUT, 3)),
        ("signed-asymmetric", "weight_zero_point", torch.zeros(OUT, dtype=torch.int8)),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(name: str, suffix: str, wrong: Tensor, tmp_path: Path) -> None:
    tensors = QUANTISERS[name].make(OUT, IN, GROUP).tensors | {suffix: wrong}
    with pytest.raises(BadWeights, match="quantised layer"):
        saved(tmp_path, tensors, QUANTISERS[name].settings)


@pytest.mark.parametrize("name", ["awq", "gptq", "packed"])
def test_a_layer_without_its_scales_is_refused(name: str, tmp_path: Path) -> None:
    tensors = QUANTISERS[name].make(OUT, IN, GROUP).tensors
    tensors = {suffix: tensor for suffix, tensor in tensors.items() if "scale" not in suffix}
    with pytest.raises(BadWeights, match=r"no scales|not expected"):
        saved(tmp_path, tensors, QUANTISERS[name].settings).check({NAME: (OUT, IN)})


@pytest.mark.parametrize("name", [*IN_4_BITS, *PERMUTED, "signed"])
def test_scales_that_are_not_finite_are_refused_however_they_are_read(name: str, tmp_path: Path) -> None:
    tensors = QUANTISERS[name].make(OUT, IN, IN if name == "signed" else GROUP).tensors
    next(tensor for suffix, tensor in tensors.items() if "scale" in suffix)[0, 0] = torch.inf
    checkpoint = saved(tmp_path, tensors, QUANTISERS[name].settings)
    reads: list[Callable[[], object]] = [lambda: checkpoint.read_into(NAME, torch.empty(OUT, IN))]
    reads += [lambda: checkpoint.groups(NAME)] if name in IN_4_BITS else []
    reads += [lambda: checkpoint.int8_rows(NAME)] if name == "signed" else []
    for read in reads:
        with pytest.raises(BadWeights, match="not finite"):
            read()
