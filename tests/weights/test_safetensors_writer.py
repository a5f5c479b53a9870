"""The streaming writer, against torch's rounding and safetensors' reader."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from ringkv.weights.safetensors_writer import SafetensorsWriter, TensorSpec, to_bfloat16

finite = st.integers(0, 2**32 - 1).filter(lambda bits: bits & 0x7F800000 != 0x7F800000)


@given(st.lists(finite, min_size=1, max_size=50))
def test_rounding_is_torchs_bit_for_bit(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    theirs = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), theirs)


def test_ties_round_to_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    assert to_bfloat16(halfway).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_tensors_written_in_blocks_read_back_whole(tmp_path: Path) -> None:
    large, small = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32), np.arange(3, dtype=np.float32)
    path = tmp_path / "x.safetensors"
    with SafetensorsWriter(path, {"large": TensorSpec((7, 5)), "small": TensorSpec((3,))}) as writer:
        for block in (large[:4], large[4:], small):
            writer.write(to_bfloat16(block))
    back = load_file(path)
    assert torch.equal(back["large"], torch.from_numpy(large).bfloat16())
    assert back["small"].tolist() == [0.0, 1.0, 2.0]


def test_an_unfinished_file_fails_an_assertion(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="20 bytes"),
        SafetensorsWriter(tmp_path / "x.safetensors", {"x": TensorSpec((5, 3))}) as writer,
    ):
        writer.write(to_bfloat16(np.zeros(5, np.float32)))
