"""A conversation's next turn: what it begins with, and that it ends as it would have without."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ringkv.base.engine import chunks
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny
from tests.engine.test_engine import prompt

STORE = 8 * 2**20
GOES_ON = KVChoice(budget=64, sinks=4, recent=16, select=SnapKV(window=8), turns="continue")


@pytest.fixture
def engine(llama_dir: Path) -> LocalEngine:
    return build(tiny.config(llama_dir, store_bytes=STORE))


def read(engine: LocalEngine, asked: Request, chunk: int = 16) -> tuple[int, Tensor]:
    """As a loop does it: how many tokens were cached, and the logits after the prompt."""
    known = engine.begin(asked, 0).tokens
    for work in chunks(asked, 0, known, chunk):
        engine.prefill([work])
    return known, engine.lanes.logits(0).clone()


def take_turn(engine: LocalEngine, asked: Request, steps: int) -> tuple[int, list[int]]:
    """Serve a request to its end: how many tokens were known, and its answer, whose last token is not fed."""
    known, _ = read(engine, asked)
    engine.insert(0, 0, asked)
    answer, _ = tiny.decode(engine, steps)
    engine.leave(0, (*asked.tokens, *answer))
    engine.release(0)
    return known, [*answer, 5]


@pytest.mark.parametrize(("same", "known"), [(200, 192), (130, 128), (128, 128), (127, 64), (63, 0)])
def test_a_prompt_that_begins_as_one_before_ends_bit_for_bit_as_if_it_had_been_read(
    engine: LocalEngine, llama_dir: Path, same: int, known: int
) -> None:
    first = prompt(200)
    second = tiny.request([*first[:same], *prompt(40, 1)])
    read(engine, tiny.request(first))
    got, logits = read(engine, second)
    fresh = build(tiny.config(llama_dir))
    _, wanted = read(fresh, second)
    assert got == known
    assert torch.equal(logits, wanted)
    for mine, theirs in zip(seen(engine), seen(fresh), strict=True):
        assert torch.equal(mine, theirs)


def seen(engine: LocalEngine) -> tuple[Tensor, Tensor, Tensor]:
    found = engine.lanes.view(0, 0, 8)
    return torch.stack(found.q), found.keys, found.values


def test_the_queries_that_choose_are_read_in_any_case(engine: LocalEngine) -> None:
    asked = tiny.request(prompt(128))
    read(engine, asked)
    assert read(engine, asked)[0] == 64  # of the last 8 tokens the queries are wanted


def test_without_a_store_a_prompt_is_never_hashed(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tiny.request(prompt(200))
    _, wanted = read(build(tiny.config(llama_dir, store_bytes=STORE)), asked)

    def hashes(*_: object) -> None:
        pytest.fail("hashed for a store that holds nothing")

    monkeypatch.setattr("ringkv.cache.store.prefixes.block_hashes", hashes)
    known, logits = read(build(tiny.config(llama_dir)), asked)
    assert known == 0
    assert torch.equal(logits, wanted)


def test_another_client_finds_nothing(engine: LocalEngine) -> None:
    asked = tiny.request(prompt(200))
    read(engine, asked)
    assert read(engine, replace(asked, salt="another"))[0] == 0


@pytest.mark.parametrize("chunk", [24, 48])
def test_where_chunks_and_blocks_do_not_meet_a_prompt_still_fits_its_lane(llama_dir: Path, chunk: int) -> None:
    engine = build(tiny.config(llama_dir, store_bytes=STORE, chunk=chunk, prompt_tokens=240))
    asked = tiny.request(prompt(236))
    first, second = (read(engine, asked, chunk) for _ in range(2))
    assert 0 < second[0] <= 192
    torch.testing.assert_close(first[1], second[1], atol=2e-5, rtol=1e-4)


def test_without_a_store_nothing_is_known(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir))
    asked = tiny.request(prompt(200), kv=GOES_ON)
    take_turn(engine, asked, 5)
    assert read(engine, asked)[0] == 0


def test_with_a_full_cache_a_turn_that_goes_on_ends_as_if_all_had_been_read(
    engine: LocalEngine, llama_dir: Path
) -> None:
    full = KVChoice("full", turns="continue")
    first = tiny.request(prompt(30), kv=full)
    _, answer = take_turn(engine, first, 12)
    second = tiny.request([*first.tokens, *answer, *prompt(10, 1)], kv=full)
    known, logits = read(engine, second)
    assert known == 42  # all but the answer's last token and the new ones
    _, wanted = read(build(tiny.config(llama_dir)), second)
    torch.testing.assert_close(logits, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [30, 150])
@pytest.mark.parametrize("policy", ["streaming", "snapkv", "snapstream"])
def test_what_is_new_sees_what_was_left_and_stands_where_the_text_says(
    engine: LocalEngine, llama_dir: Path, policy: str, length: int
) -> None:
    """Beside transformers, given the slot's live entries as its cache and the true positions."""
    kv = replace(GOES_ON, policy=policy)
    first = tiny.request(prompt(length), kv=kv)
    read(engine, first)
    engine.insert(0, 0, first)
    answer, _ = tiny.decode(engine, 9)
    left = live(engine, length + 9)
    engine.leave(0, (*first.tokens, *answer))
    engine.release(0)

    second = tiny.request([*first.tokens, *answer, *prompt(20, 1)], kv=kv)
    known, logits = read(engine, second)
    assert known == length + 9
    theirs = Reference(llama_dir, *left)
    torch.testing.assert_close(logits, theirs.read(second.tokens[known:], known), atol=2e-5, rtol=1e-4)

    # And on from there: the slot holds what it should, and its new tokens stand where the text says.
    (layout,) = engine.compress(0, kv)
    engine.insert(0, 0, second)
    steps = 40 if layout.free_entries is None else layout.free_entries
    for position, token in enumerate(prompt(steps, 2), start=len(second.tokens)):
        tiny.decode(engine, 1, forced=[token])
        before = live(engine, position + 1, but=layout.entry(position))
        wanted = Reference(llama_dir, *before).read((token,), position)
        torch.testing.assert_close(engine.batch.logits[0], wanted, atol=2e-5, rtol=1e-4)


def live(engine: LocalEngine, n: int, but: int | None = None) -> tuple[Tensor, Tensor]:
    """Keys and values [L, H, m, D] of slot 0's entries, in their own order, `but` one."""
    _, (layout,) = engine.batch.owner(0)
    places = [entry for entry in range(layout.live(n)) if entry != but]
    keys, values = engine.batch.slot(0).read_group(0, torch.tensor(places))
    return keys, values


class Reference:
    """transformers' own model, with keys and values [L, H, m, D] as what came before."""

    def __init__(self, folder: Path, keys: Tensor, values: Tensor) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._cache = transformers.DynamicCache()
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            self._cache.update(k[None].clone(), v[None].clone(), layer)

    @torch.inference_mode()
    def read(self, tokens: tuple[int, ...], position: int) -> Tensor:
        """Logits after the last of the tokens, which stand from `position` on."""
        places = torch.arange(position, position + len(tokens))[None]
        out: Any = self._model(torch.tensor([tokens]), past_key_values=self._cache, position_ids=places)
        logits: Tensor = out.logits[0, -1]
        return logits


def test_an_answer_that_is_told_otherwise_is_read_from_where_it_differs(engine: LocalEngine) -> None:
    first = tiny.request(prompt(150), kv=GOES_ON)
    _, answer = take_turn(engine, first, 12)
    told = [*first.tokens, *answer[:7], *prompt(10, 1)]
    assert read(engine, tiny.request(told, kv=GOES_ON))[0] == 157


@pytest.mark.parametrize("change", [{"protect": ((3, 9),)}, {"turns": "reread"}])
def test_where_it_cannot_go_on_it_reads_again_from_what_is_known_of_the_prompt(
    engine: LocalEngine, change: dict[str, Any]
) -> None:
    kv = replace(GOES_ON, **change)
    first = tiny.request(prompt(130), kv=kv)
    _, answer = take_turn(engine, first, 12)
    second = tiny.request([*first.tokens, *answer, *prompt(20, 1)], kv=kv)
    assert read(engine, second)[0] == 128


def test_a_protected_beginning_stays_through_all_turns(engine: LocalEngine) -> None:
    kv = replace(GOES_ON, protect=((0, 12),))
    tokens = prompt(150)
    read(engine, tiny.request(tokens, kv=kv))
    system = seen(engine)[1][:, :, :12].clone()
    for turn in range(4):
        asked = tiny.request(tokens, kv=kv)
        known, answer = take_turn(engine, asked, 40)
        assert turn == 0 or known > 100
        tokens = [*tokens, *answer][:240]
        assert torch.equal(engine.batch.bodies[0].planes[0][:, 0, :, :12], system)


@pytest.mark.parametrize(
    ("length", "policy"), [(120, "snapstream"), (120, "snapkv"), (120, "streaming"), (30, "snapstream")]
)
def test_it_is_known_which_tokens_of_the_whole_prompt_a_later_turn_keeps(
    engine: LocalEngine, llama_dir: Path, length: int, policy: str
) -> None:
    """A value of the first layer is of its token alone, so it says which token an entry holds."""
    kv, fresh = replace(GOES_ON, policy=policy, budget=48), build(tiny.config(llama_dir))
    asked = replace(tiny.request(prompt(length), kv=kv), trace=True)
    for turn in range(3):
        _, tail = take_turn(engine, asked, 14)
        asked = replace(asked, tokens=(*asked.tokens, *tail, *prompt(12, turn + 1)))
        read(engine, asked)
        read(fresh, asked)
        values = fresh.lanes.view(0, 0, 8).values[0]
        kept = engine.kept(0, kv)
        engine.insert(0, 0, asked)
        slot = engine.batch.bodies[0].planes[1][0, 0]
        for head, tokens in enumerate(map(torch.from_numpy, kept[0])):
            torch.testing.assert_close(slot[head, : len(tokens)], values[head, tokens], atol=1e-5, rtol=1e-4)
        for tokens in (row.tolist() for layer in kept for row in layer):
            assert len(set(tokens)) == len(tokens) <= 48
            assert 0 <= min(tokens) <= max(tokens) == len(asked.tokens) - 1
        engine.release(0)
    assert len(asked.tokens) - kept[0].shape[1] > 30  # some of them were evicted


def test_after_a_turn_without_the_field_it_is_not_known(engine: LocalEngine) -> None:
    first = tiny.request(prompt(150), kv=GOES_ON)
    _, tail = take_turn(engine, first, 9)
    second = replace(tiny.request([*first.tokens, *tail, *prompt(12, 1)], kv=GOES_ON), trace=True)
    read(engine, second)
    with pytest.raises(InvalidRequest, match="not known"):
        engine.kept(0, GOES_ON)
