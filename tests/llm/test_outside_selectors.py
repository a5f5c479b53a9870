"""Selectors from outside the package: an LLM keeps the tokens that they vote for, as transformers' keys say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from ringkv import LLM, KeyDiff, KVChoice, SamplingParams, Selector, SnapKV
from ringkv.base.errors import InvalidRequest
from tests import chat_model

TEXT = "Votes are real numbers, and the highest of them win. " * 4
BUDGET, SINKS, RECENT = 48, 4, 16
ONE = SamplingParams(max_tokens=1, ignore_eos=True)


class Knorm(Selector):
    """kvpress's Knorm: keys with a low norm are kept, so each score is minus the norm of a key."""

    name = "knorm"

    def votes(self, prompt: Any, low: int, high: int) -> Tensor:
        return -prompt.keys[:, :, low:high].norm(dim=-1)


@dataclass(frozen=True)
class LastQuery(Selector):
    """TOVA: the mean attention of the last query, equal in all heads of a layer. As a logarithm it is negative."""

    name: str = "last_query"
    queries = 1

    def votes(self, prompt: Any, low: int, high: int) -> Tensor:
        scores = torch.stack([q[:, :, -1] @ keys.mT for q, keys in zip(prompt.q, prompt.keys, strict=True)])
        attention = (scores * prompt.scale).softmax(-1).mean((1, 2)).log()
        return attention[:, None, low:high].expand(-1, prompt.keys.shape[1], -1)


class Returning(Selector):
    """Returns what it is told to."""

    name = "custom"

    def __init__(self, votes: Callable[[Tensor], object]) -> None:
        self._votes = votes

    def votes(self, prompt: Any, low: int, high: int) -> object:
        return self._votes(prompt.keys[:, :, low:high, 0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, kv_budget=64, kv_window=8, prompt_tokens=448, slots=2, dtype="float32", graphs="off", threads=2)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def choice(select: Any) -> KVChoice:
    return KVChoice(budget=BUDGET, sinks=SINKS, recent=RECENT, select=select)


def selected(llm: LLM, select: Selector) -> np.ndarray:
    """int64 [L, H, K]: the tokens that an answer's slot has selected."""
    assert len(llm.generate(TEXT, ONE, kv=choice(select)).token_ids) == 1
    kept = np.stack(llm._engine.kept(0, choice(select)))
    return kept[..., SINKS : BUDGET - RECENT]


def highest(scores: list[float]) -> list[int]:
    """The places of the highest scores of a head among its candidates, in ascending order."""
    candidates = range(SINKS, len(TEXT) - RECENT)
    return sorted(sorted(candidates, key=lambda place: (-scores[place], place))[: BUDGET - SINKS - RECENT])


@torch.inference_mode()
def test_knorm_keeps_the_keys_with_the_lowest_norms(llm: LLM, model: Any) -> None:
    cache = model(torch.tensor([[*TEXT.encode()]]), use_cache=True).past_key_values
    # In the first layer the keys of equal tokens have equal norms, up to rounding.
    keys = [layer.keys[0] for layer in cache.layers[1:]]
    want = [[highest([-float(key.norm()) for key in head]) for head in layer] for layer in keys]
    np.testing.assert_array_equal(selected(llm, Knorm())[1:], want)


@torch.inference_mode()
def test_a_selector_by_the_last_query_keeps_what_it_attends_to(llm: LLM, model: Any) -> None:
    attentions = model(torch.tensor([[*TEXT.encode()]]), output_attentions=True).attentions
    want = [highest(layer[0, :, -1].mean(0).tolist()) for layer in attentions]
    got = selected(llm, LastQuery())
    for head in range(got.shape[1]):
        np.testing.assert_array_equal(got[:, head], want)


def test_a_selector_may_be_chosen_by_name(llm: LLM) -> None:
    assert choice("keydiff") == choice(KeyDiff())
    with pytest.raises(InvalidRequest, match=r"kv_select is 'keydif'; it must be one of snapkv, tova, keydiff"):
        choice("keydif")


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (
            lambda keys: keys.flatten(0, 1),
            r"custom returned \[\d+, \d+\]; return a tensor \[\d+, \d+, \d+\]",
        ),
        (lambda keys: None, r"votes\(\) of custom returned NoneType"),
        (lambda keys: keys / 0 * 0, r"votes\(\) of custom returned NaN or infinity"),
        (lambda keys: keys[10**6], r"votes\(\) of custom raised IndexError: "),
    ],
)
def test_votes_that_cannot_be_ordered_fail_the_answer(
    llm: LLM, votes: Callable[[Tensor], object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(TEXT, ONE, kv=choice(Returning(votes)))


def test_an_object_without_votes_a_name_or_a_hash_is_refused() -> None:
    @dataclass
    class Mutable(Knorm):
        power: int = 1

    class Nameless(Selector):
        votes = Knorm.votes

    for select in (Selector(), Nameless(), Mutable(), object(), Knorm, SnapKV):
        with pytest.raises(InvalidRequest, match=r"or a hashable ringkv.Selector with a name and votes"):
            choice(select)


def test_a_choice_that_is_a_dictionary_is_refused(llm: LLM) -> None:
    calls: list[Callable[..., object]] = [llm.generate, llm.stream]
    for call in calls:
        with pytest.raises(InvalidRequest, match=r"kv is of type dict; give KVChoice\(budget=64\)"):
            call(TEXT, ONE, kv={"budget": 64})
    with pytest.raises(InvalidRequest, match=r"kv is of type dict"):
        llm.chat([{"role": "user", "content": "hi"}], ONE, kv={"budget": 64})  # type: ignore[arg-type]
