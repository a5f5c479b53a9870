"""Prompts of latent attention whose chunks are long enough to be expanded."""

from pathlib import Path

import pytest
import torch

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.engine import chunks
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.kernels.latent_pass import EXPANDED_ROWS
from tests.engine import kept, tiny
from tests.engine.reference import use_reference
from tests.engine.test_engine import prompt
from tests.engine.test_golden import LATENT

FULL = KVChoice("full", budget=512, select=SnapKV(window=8))
SIZES = {"num_hidden_layers": 2, "vocab_size": 224, "q_lora_rank": 64, "v_head_dim": 32, "first_k_dense_replace": 0}
LONG = 420
NEAR: dict[PlaneFormat, float] = {"int8": 0.02, "int4": 0.1}  # error of logits over their spread


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latents")
    tiny.save(folder, "DeepseekV3", **LATENT | SIZES)
    return folder


def test_logits_of_expanded_and_of_absorbed_chunks_match_transformers(folder: Path) -> None:
    theirs = tiny.save(folder, "DeepseekV3", **LATENT | SIZES)
    tokens = prompt(LONG)
    want = kept.logits(theirs, tokens)[-1]
    for chunk in (64, 256, 512):  # the last chunk of 256 is absorbed
        engine = build(tiny.config(folder, capacity=512, prompt_tokens=512, chunk=chunk, kv=FULL))
        assert LONG - 256 < EXPANDED_ROWS
        torch.testing.assert_close(tiny.stage(engine, tiny.request(tokens)), want, atol=1e-4, rtol=1e-4)


def test_selectors_vote_alike_in_both_forms(folder: Path) -> None:
    asked = tiny.request(prompt(LONG), kv=tiny.choice("snapstream"))
    found = [tiny.kept(build(tiny.config(folder, prompt_tokens=512, chunk=chunk)), asked) for chunk in (64, 512)]
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(("weights", "kv_format"), [("bf16", "plain"), ("int4", "plain"), ("bf16", "int4")])
def test_slots_that_ride_beside_an_expanded_chunk_get_the_logits_of_a_decode_step(
    weights: str, kv_format: PlaneFormat, folder: Path
) -> None:
    sizes = {"slots": 9, "lanes": 2, "staged_tokens": 1024, "prompt_tokens": 512, "chunk": 256}
    made = build(tiny.config(folder, dtype="bfloat16", weights=weights, slot_format=SlotFormat(kv_format), **sizes))
    assert made.limits.rides

    def after(ride: bool) -> torch.Tensor:
        for slot, length in ((1, 90), (5, 40)):
            tiny.enter(made, tiny.request(prompt(length), name=f"{length}"), slot)
        logits = []
        late = tiny.request(prompt(LONG), name="late")
        for work in chunks(late, 1, made.begin(late, 1).tokens, 256):
            made.sample().read()
            if ride:
                made.prefill([work], feed=True)
            else:
                made.forward()
                made.prefill([work])
            logits.append(made.batch.logits[[1, 5]].clone())
        logits.append(made.lanes.logits(1).clone().expand(2, -1))
        for slot in (1, 5):
            made.release(slot)
        return torch.stack(logits)

    assert torch.equal(after(ride=True), after(ride=False))


@pytest.mark.parametrize("name", NEAR)
def test_encoded_slots_give_the_logits_of_their_decoded_planes_and_stay_close_to_plain_ones(
    name: PlaneFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries have two groups; the ring wraps."""
    tiny.save(tmp_path, "DeepseekV3", **LATENT | SIZES | {"kv_lora_rank": 128})

    def logits(kv_format: PlaneFormat) -> torch.Tensor:
        engine = build(tiny.config(tmp_path, dtype="bfloat16", slot_format=SlotFormat(kv_format)))
        tiny.enter(engine, tiny.request(prompt(100)))
        return tiny.decode(engine, 70, forced=prompt(70))[1]

    plain, found = logits("plain"), logits(name)
    use_reference(monkeypatch)
    decoded = logits(name)
    assert (found - decoded).abs().mean() < 0.01 * plain.std()
    assert 0 < (found - plain).abs().mean() < NEAR[name] * plain.std()
