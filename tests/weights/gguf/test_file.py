"""Broken GGUF files: each is refused immediately, with one sentence."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringkv.base.errors import BadWeights
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.header import read_header
from tests.weights.tiny_gguf import tiny_model, write_tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_tiny(path, tiny_model("Llama"), Type.Q8_0, {"tokens": ["one", "two"] * 30}).read_bytes()


def test_the_whole_file_opens(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole)
    gguf = GGUF(path)
    assert gguf.get("llama.context_length") == 256
    assert gguf.get("tokens")[:2] == ["one", "two"]
    assert gguf.get("absent", 3) == 3
    assert gguf.shape("blk.1.ffn_down.weight") == (64, 96)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.998))
def test_a_file_cut_anywhere_is_refused(share: float, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadWeights, match=r"cut\.gguf"):
        GGUF(path)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>")
    with pytest.raises(BadWeights, match="not a GGUF"):
        GGUF(path)


def test_counts_that_cannot_fit_are_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(whole[:8] + (1 << 60).to_bytes(8, "little") + whole[16:])
    with pytest.raises(BadWeights, match="truncated or corrupt"):
        GGUF(path)


def test_values_that_are_not_finite_are_refused_by_tensor(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(whole)
    start = read_header(path).tensors["blk.0.ffn_up.weight"].start
    data = bytearray(whole)
    data[start : start + 2] = np.float16(np.inf).tobytes()  # the first block's scale
    path.write_bytes(data)
    with pytest.raises(BadWeights, match=r"not finite .*blk\.0\.ffn_up\.weight"):
        list(GGUF(path).rows("blk.0.ffn_up.weight"))
