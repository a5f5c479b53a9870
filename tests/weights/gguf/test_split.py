"""GGUFs in several files, written by the gguf package: as one file with the same model."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.gguf.config import config_json
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.split import set_name
from tests.weights.tiny_gguf import tiny_model, write_tiny

NAMES = [f"tiny-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The three files of a tiny Llama of 21 tensors."""
    write_tiny(tmp_path / "tiny.gguf", tiny_model("Llama"), per_part=8)
    return [tmp_path / name for name in NAMES]


def test_the_first_part_opens_all(parts: list[Path], tmp_path: Path) -> None:
    split, whole = GGUF(parts[0]), GGUF(write_tiny(tmp_path / "whole.gguf", tiny_model("Llama")))
    assert sorted(path.name for path in tmp_path.glob("tiny-*")) == NAMES
    assert config_json(split) == config_json(whole)
    assert sorted(split.names) == sorted(whole.names)
    for name in whole.names:
        assert np.array_equal(np.concatenate(list(split.rows(name))), np.concatenate(list(whole.rows(name))))


def test_missing_parts_are_named_with_how_many_there_should_be(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(BadWeights, match=rf"1 of the 3 .*{NAMES[0]} .*{NAMES[1]}"):
        GGUF(parts[0])


def test_another_part_than_the_first_asks_for_the_first(parts: list[Path]) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{NAMES[2]} .*3 of 3.*{NAMES[0]}"):
        GGUF(parts[2])


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny-00001-of-00004.gguf", "tiny-00001-of-99999.gguf"])
def test_a_part_with_another_name_is_refused(name: str, parts: list[Path]) -> None:
    with pytest.raises(UnsupportedModel, match=r"NAME-00001-of-00003\.gguf"):
        GGUF(parts[0].rename(parts[0].with_name(name)))


def test_a_part_in_another_ones_place_is_refused(parts: list[Path]) -> None:
    shutil.copyfile(parts[1], parts[2])
    with pytest.raises(BadWeights, match=rf"{NAMES[2]} .*part 3"):
        GGUF(parts[0])
    with pytest.raises(UnsupportedModel, match=rf"{NAMES[2]} is part 2 of 3"):
        GGUF(parts[2])


def test_a_part_of_another_model_is_refused(parts: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_tiny(other / "tiny.gguf", tiny_model("Llama", tie_word_embeddings=True), per_part=8)
    shutil.copyfile(other / NAMES[2], parts[2])
    with pytest.raises(BadWeights, match=r"20 tensors.* 21"):
        GGUF(parts[0])


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-100])
    with pytest.raises(BadWeights, match=rf"{NAMES[2]} .*truncated"):
        GGUF(parts[0])


def test_values_that_are_not_finite_are_named_with_their_part(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-4] + np.float32(np.inf).tobytes())
    file = GGUF(parts[0])
    with pytest.raises(BadWeights, match=rf"{NAMES[2]} .*not finite"):
        list(file.rows(file.names[-1]))


@pytest.mark.parametrize(
    ("name", "known"), [(NAMES[0], "tiny"), ("tiny.gguf", "tiny"), ("a\n-00002-of-00003.gguf", "a\n"), ("dir", "dir")]
)
def test_a_set_is_called_by_the_name_of_its_parts_without_their_numbers(name: str, known: str) -> None:
    assert set_name(Path(name)) == known
