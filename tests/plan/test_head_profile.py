"""Profiles of heads in files, and which of them an engine takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.config import HeadShares
from ringkv.base.errors import InvalidRequest
from ringkv.base.progress import silent
from ringkv.plan.complete import complete
from ringkv.plan.head_profile import FILE, HeadProfile, heads_of, measure, measured, model_key, read, unfinished
from ringkv.plan.options import Options
from tests.plan.models import SMOLLM2
from tests.refusals import refusal

MODEL = "a key of a model"
PARTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def score(part: list[int]) -> HeadShares:
    return ((part[0], 2.0 * part[0]), (), (1.0, 0.5))


def of_model(value: float = 1.0) -> HeadProfile:
    return HeadProfile("text", 1, (tuple((value,) * heads for heads in heads_of(SMOLLM2)),))


def test_a_profile_is_the_mean_of_its_parts(tmp_path: Path) -> None:
    measure(tmp_path / FILE, MODEL, PARTS, score, silent)
    assert read(tmp_path / FILE).shares == ((4.0, 8.0), (), (1.0, 0.5))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_an_interrupted_measurement_goes_on_and_leaves_the_old_profile(tmp_path: Path) -> None:
    path, seen = tmp_path / FILE, []
    HeadProfile("other", 1, (score([9]),)).write(path)

    def interrupted(part: list[int]) -> HeadShares:
        if part == PARTS[2]:
            raise KeyboardInterrupt
        return score(part)

    with pytest.raises(KeyboardInterrupt):
        measure(path, MODEL, PARTS, interrupted, silent)
    assert (measured(path, MODEL, PARTS), read(path).text) == (2, "other")
    measure(path, MODEL, PARTS, lambda part: seen.append(part) or score(part), silent)  # type: ignore[func-returns-value]
    assert seen == PARTS[2:]
    assert read(path).shares == ((4.0, 8.0), (), (1.0, 0.5))
    measure(path, MODEL, PARTS, interrupted, silent)  # it is there, so that nothing is measured


def test_another_text_is_measured_from_its_beginning(tmp_path: Path) -> None:
    for parts in (PARTS, PARTS[:2], PARTS[1:]):
        measure(tmp_path / FILE, MODEL, parts, score, silent)
        assert read(tmp_path / FILE).shares[0][0] == sum(part[0] for part in parts) / len(parts)


def test_another_model_is_measured_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / FILE

    def stopped(part: list[int]) -> HeadShares:
        if part == PARTS[1]:
            raise KeyboardInterrupt
        return score(part)

    with pytest.raises(KeyboardInterrupt):
        measure(path, "first", PARTS, stopped, silent)
    assert [measured(path, model, PARTS) for model in ("first", "second")] == [1, 0]
    for model, rest in (("first", PARTS[1:]), ("second", PARTS)):
        seen: list[list[int]] = []
        measure(path, model, PARTS, lambda part, seen=seen: seen.append(part) or score(part), silent)  # type: ignore[misc]
        assert (seen, read(path).model) == (rest, model)


def test_the_key_of_a_model_depends_on_its_files_and_on_how_it_is_computed(tmp_path: Path) -> None:
    keys: list[str] = []

    def add(folder: Path, **options: Any) -> None:
        keys.append(model_key(complete(folder, SMOLLM2, Options(**options))))

    folder = tmp_path / "one"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    for options in ({}, {"weights": "int8"}, {"weights": "int4"}, {"dtype": "float32"}):
        add(folder, **options)
    (folder / "model.safetensors").write_text("other weights")
    add(folder)
    assert len(set(keys)) == len(keys)
    folder.rename(tmp_path / "moved")
    add(tmp_path / "moved", weights="bf16", kv_budget=100, threads=1)
    assert keys[-1] == keys[-2]


def test_a_profile_without_a_model_is_read_and_measured_again(tmp_path: Path) -> None:
    measure(tmp_path / FILE, MODEL, PARTS, score, silent)
    older = json.loads((tmp_path / FILE).read_text())
    del older["model"]
    (tmp_path / FILE).write_text(json.dumps(older))
    assert read(tmp_path / FILE).shares == ((4.0, 8.0), (), (1.0, 0.5))
    assert measured(tmp_path / FILE, MODEL, PARTS) == 0


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        "{}",
        '{"text": "x", "parts": 1, "scores": []}',
        '{"text": "x", "parts": 1, "scores": [[[-1]]]}',
        '{"text": "x", "parts": 1, "scores": [[["1"]]]}',
        '{"text": "x", "parts": 1, "scores": [[[NaN]]]}',
        '{"text": "x", "parts": 2, "scores": [[[1]], [[1, 2]]]}',
        '{"text": "x", "parts": 2, "scores": [[[1]]]}',
        '{"text": "x", "parts": 1, "scores": 7}',
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with refusal("kv_profile", "delete it"):
        read(tmp_path / FILE)
    measure(tmp_path / FILE, MODEL, PARTS, score, silent)
    assert read(tmp_path / FILE).is_whole


def shares(folder: Path, **options: str) -> HeadShares:
    return complete(folder, SMOLLM2, Options(**options)).head_shares  # type: ignore[arg-type]


def test_an_engine_takes_the_profile_beside_the_weights_or_the_file_that_is_named(tmp_path: Path) -> None:
    of_model().write(tmp_path / FILE)
    of_model(2.0).write(tmp_path / "other")
    assert {share for layer in shares(tmp_path, kv_heads="profile") for share in layer} == {1.0}
    assert shares(tmp_path, kv_heads="global") == shares(tmp_path, kv_heads="profile")
    assert shares(tmp_path) == ()
    named = shares(tmp_path, kv_heads="profile", kv_profile=str(tmp_path / "other"))
    assert {share for layer in named for share in layer} == {2.0}


def test_a_profile_that_is_missing_or_another_models_is_refused(tmp_path: Path) -> None:
    assert shares(tmp_path, kv_heads="global") == ()
    with pytest.raises(InvalidRequest, match=f"run ringkv profile {tmp_path}, or choose global") as refused:
        shares(tmp_path, kv_heads="profile")
    assert refused.value.param == "kv_heads"
    HeadProfile("text", 1, (((1.0,),),)).write(tmp_path / FILE)
    with refusal("kv_profile", "1 layers"):
        shares(tmp_path, kv_heads="global")
    with refusal("kv_profile", "equal"):
        shares(tmp_path, kv_profile=str(tmp_path / FILE))


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    HeadProfile("text", 2, (score([1]),), MODEL).write(unfinished(tmp_path / FILE))
    found = json.loads((tmp_path / f"{FILE}.partial").read_text())
    assert found == {"text": "text", "parts": 2, "scores": [[[1, 2.0], [], [1.0, 0.5]]], "model": MODEL}
