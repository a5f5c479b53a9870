"""Selectors in an engine: each gets the queries that it looks at, whatever the engine's default is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.select import VOTES
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny

PROMPT = [2 + token % 190 for token in range(0, 7 * 120, 7)]
CHOICE = KVChoice(budget=48, sinks=4, recent=16)
EVERY: list[Selector] = [SnapKV(window=8), TOVA(), KeyDiff(), KVzip()]


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama")
    return folder


def kept(engine: LocalEngine, selector: Selector) -> np.ndarray:
    """int64 [L, H, live]: what a request with this selector keeps."""
    asked = tiny.request(PROMPT, kv=replace(CHOICE, select=selector))
    engine.admit(asked)
    return tiny.kept(engine, asked)


@pytest.mark.parametrize("default", EVERY[1:], ids=lambda one: one.name)
def test_a_request_may_have_any_selector_and_keeps_the_same_whatever_the_default_is(
    llama_dir: Path, default: Selector
) -> None:
    usual, other = (
        build(tiny.config(llama_dir, kv=replace(CHOICE, budget=64, select=select))) for select in (EVERY[0], default)
    )
    for selector in EVERY:
        source = kept(usual, selector)
        assert source.shape[-1] == 48
        np.testing.assert_array_equal(kept(other, selector), source)


@pytest.mark.parametrize("selector", EVERY, ids=lambda one: one.name)
def test_a_selector_sees_the_queries_that_it_looks_at_and_no_more(
    llama_dir: Path, selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(tiny.config(llama_dir))
    seen: list[int] = []

    def votes(prompt, low, high, given):
        assert given is selector
        seen.extend({queries.shape[2] for queries in prompt.q})
        return torch.ones(*prompt.keys.shape[:2], high - low)

    monkeypatch.setitem(VOTES, type(selector), votes)  # type: ignore[arg-type]
    asked = tiny.request(PROMPT, kv=replace(CHOICE, select=selector))
    tiny.enter(engine, asked)
    assert seen == [selector.queries]


@pytest.mark.parametrize("selector", EVERY, ids=lambda one: one.name)
def test_slots_may_be_fed_between_the_parts_of_a_selection_which_may_end_early(
    llama_dir: Path, selector: Selector
) -> None:
    engine, choice = build(tiny.config(llama_dir)), replace(CHOICE, select=selector)
    want = kept(engine, selector)
    runs = tiny.request(tiny.prompt(70, 1))
    tiny.enter(engine, runs, slot=1)
    tokens, _ = tiny.decode(engine, 24, slot=1)
    tiny.enter(engine, runs, slot=1)
    tiny.stage(engine, tiny.request(PROMPT, kv=choice))
    early = engine.select(0, choice)
    next(early)
    del early
    got: list[int] = []
    for _ in engine.select(0, choice):
        got += tiny.decode(engine, 1, slot=1)[0]
    assert len(got) >= 3  # layers
    np.testing.assert_array_equal(np.stack(engine.kept(0, choice)), want)
    assert got == tokens[: len(got)]
    assert not [*engine.select(0, choice)]  # once for each choice


def test_more_queries_than_are_kept_are_refused_by_the_settings_name(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir))
    with pytest.raises(InvalidRequest, match=r"9 .* 8 queries") as refused:
        engine.admit(tiny.request(PROMPT, kv=replace(CHOICE, select=SnapKV(window=9))))
    assert refused.value.param == "kv_window"
