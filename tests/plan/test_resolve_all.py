"""Several models of one server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.config import EngineConfig
from ringkv.base.errors import DoesNotFit
from ringkv.plan import resolve as module
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options
from ringkv.plan.resolve import Wanted, resolve, resolve_all
from tests.plan.models import QWEN, SMOLLM2
from tests.plan.resolved import PLENTY

MODELS = {"small": SMOLLM2, "large": QWEN}


def both(memory: int, **options: Any) -> list[EngineConfig]:
    wanted = [Wanted(Path("models") / name, model, Options(**options)) for name, model in MODELS.items()]
    return resolve_all(wanted, memory)


def needs(engines: list[EngineConfig]) -> list[int]:
    return [
        engine_footprint(model, engine).total(engine.slots)
        for model, engine in zip(MODELS.values(), engines, strict=True)
    ]


def test_models_of_one_server_are_planned_as_alone_if_they_fit_together() -> None:
    small, large = both(PLENTY, slots=4)
    assert replace(small, threads=1) == replace(
        resolve(Path("models/small"), SMOLLM2, Options(slots=4), PLENTY), threads=1
    )
    assert (large.slots, large.prompt_tokens) == (4, 32_768)
    assert sum(needs([small, large])) == sum(needs(both(sum(needs([small, large])), slots=4)))


def test_the_model_that_needs_most_is_made_smaller_first() -> None:
    wanted = both(PLENTY, prefix_store="auto")
    small, large = both(sum(needs(wanted)) - 1, prefix_store="auto")
    assert (small, large.store_bytes, large.prompt_tokens) == (wanted[0], 0, 32_768)


@given(memory=st.integers(5 * 10**9, 12 * 10**9))
def test_models_that_are_planned_together_fit_together_or_are_refused(memory: int) -> None:
    try:
        assert sum(needs(both(memory, prefix_store="auto"))) <= memory
    except DoesNotFit:
        assert sum(needs(both(PLENTY, prompt_tokens=2048))) > memory


def test_models_that_do_not_fit_together_are_refused_with_what_each_needs() -> None:
    with pytest.raises(DoesNotFit, match=r"\(small .*, large .*\).* 1 GB"):
        both(10**9)


def test_models_of_one_server_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_threads", lambda: 7)
    assert [engine.threads for engine in both(PLENTY)] == [3, 3]
    assert [engine.threads for engine in both(PLENTY, threads=5)] == [5, 5]
    monkeypatch.setattr(module, "default_threads", lambda: 1)
    assert [engine.threads for engine in both(PLENTY)] == [1, 1]
