"""Reviews of encoded slots: they keep the keys of the tokens that they name, the exact first ones among them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.cache.filling import decode
from ringkv.cache.watching.review import evict_first_keys
from ringkv.engine import build as building
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from tests.engine import tiny

REVIEW, STEPS = 16, 90
KV = tiny.choice("scissorhands", review=REVIEW)
ERRORS: dict[PlaneFormat, float] = {"int8": 0.02, "int4": 0.3}  # of a key's element, relative to the largest one


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_load_kernels", lambda *_: None)


def decode_all(engine: LocalEngine) -> None:
    tiny.enter(engine, tiny.request(tiny.prompt(40), kv=engine.config.kv), slot=1)
    tiny.decode(engine, STEPS, 1, forced=tiny.prompt(STEPS, 9))


@pytest.fixture(scope="module")
def every_key(llama_dir: Path) -> torch.Tensor:
    """The keys of all tokens in the first layer, float32 [H, C, D]."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_load_kernels", lambda *_: None)
        engine = build(tiny.config(llama_dir, kv=tiny.choice("full", budget=256), capacity=256))
    decode_all(engine)
    return engine.batch.bodies[0].planes[0][0, 1]


@pytest.mark.parametrize("encoding", list(ERRORS))
@pytest.mark.parametrize("sinks", [0, 4])
def test_entries_hold_the_keys_of_their_tokens_after_reviews(
    llama_dir: Path, every_key: torch.Tensor, encoding: PlaneFormat, sinks: int
) -> None:
    """Keys of the first layer depend on their tokens alone. They are compared with those of slots that keep all."""
    one = replace(KV, sinks=sinks)
    reviewed = build(tiny.config(llama_dir, kv=one, slot_format=SlotFormat(encoding, queries=REVIEW)))
    decode_all(reviewed)
    body = reviewed.batch.bodies[0]
    assert body.noted is not None
    assert body.slots.centers is not None
    live = 64 - REVIEW - 2  # tokens that came after the layer had its turn are not noted yet
    stored = [tensor[:1, 1, :, :live] for tensor in body.key_tensors]
    keys, positions = (
        decode(body.group.spec.key, stored, body.slots.centers[:1, 1])[0],
        body.noted.positions[0, 1, :, :live],
    )
    for head, (found, held) in enumerate(zip(keys, positions.tolist(), strict=True)):
        assert held == sorted(set(held))
        assert held[-1] > 40  # some were generated
        expected = every_key[head, held]
        assert (found - expected).abs().max() < ERRORS[encoding] * expected.abs().max()
        torch.testing.assert_close(found[:sinks], expected[:sinks])


def test_exact_keys_follow_their_entries() -> None:
    first = torch.arange(24.0).view(2, 4, 3)
    before = first.clone()
    leaving = torch.tensor([[0, 2, 8], [5, 6, 7]])
    evict_first_keys(first, leaving, 10)
    assert torch.equal(first[0, :2], before[0, [1, 3]])
    assert first[0, 2:].isnan().all()
    assert torch.equal(first[1], before[1])


def test_an_entry_that_is_free_has_no_exact_key() -> None:
    first = torch.ones(1, 4, 2)
    evict_first_keys(first, torch.tensor([[1, 2, 3]]), 5)
    assert first[0, 0].tolist() == [1.0, 1.0]
    assert first[0, 1:].isnan().all()
