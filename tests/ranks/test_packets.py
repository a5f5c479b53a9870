"""Packets of several ranks: a request moves between engines with other numbers of ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ringkv.base.cache_spec import PageFormat, PlaneFormat, Reading, SlotFormat
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Engine, Packet
from ringkv.base.errors import InvalidRequest
from ringkv.base.ranks import Rank
from ringkv.engine import build as local
from ringkv.engine.engine import LocalEngine
from ringkv.ranks.build import build
from ringkv.ranks.engine import RankedEngine
from ringkv.ranks.packets import PacketParts
from tests.engine import tiny
from tests.engine.rank_threads import on_ranks
from tests.engine.test_engine import prompt
from tests.engine.test_golden import GEMMA3, LATENT
from tests.engine.test_ranks import HEADS
from tests.ranks.test_ranks import others

MODELS = {
    "llama": ("Llama", HEADS),
    "uneven": ("Llama", {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 224}),
    "sliding": ("Gemma3", GEMMA3 | HEADS),
    "deepseek": ("DeepseekV3", LATENT | HEADS | {"q_lora_rank": 48, "num_key_value_heads": 16}),
}
CASES = [("llama", 2), ("llama", 8), ("uneven", 2), ("sliding", 2), ("deepseek", 4)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.save_all(tmp_path_factory, MODELS)


def exported(engine: LocalEngine) -> Packet:
    tiny.enter(engine, tiny.request(prompt(130)))
    return engine.export(0)


@pytest.mark.parametrize(("model", "count"), CASES)
def test_the_parts_of_ranks_merge_into_the_packet_of_one_and_are_split_again(
    folders: dict[str, Path], model: str, count: int
) -> None:
    config = tiny.config(folders[model])
    with torch.inference_mode():
        whole, parts = exported(local.build(config)), on_ranks(config, count, exported)
    live = [layout.live(130) for layout in whole.layouts]
    shapes = PacketParts.of(replace(config, rank=Rank(0, count)))
    merged = shapes.merged([part.entries for part in parts], live)
    one, several = (np.frombuffer(entries, np.float32) for entries in (whole.entries, merged))
    assert np.allclose(several, one, atol=1e-4)
    assert shapes.split(merged, live) == [part.entries for part in parts]
    with pytest.raises(ValueError, match=r"rank 1 has .* bytes"):
        shapes.merged([parts[0].entries, parts[1].entries[4:]], live)


@pytest.mark.parametrize("reading", ["everything", PageFormat(16)])
@pytest.mark.parametrize("format", ["plain", "int8", "int4", "zipcache"])
def test_split_and_merged_are_inverse_in_every_format(
    folders: dict[str, Path], format: PlaneFormat, reading: Reading
) -> None:
    if format == "zipcache" and reading != "everything":
        return  # a page is not a chunk
    slots = SlotFormat(format, reading)
    config = tiny.config(folders["llama"], slot_format=slots, dtype="bfloat16", rank=Rank(0, 8))
    shapes = PacketParts.of(config)
    engine = local.build(replace(config, rank=Rank()))
    packet = exported(engine)
    live = [layout.live(130) for layout in packet.layouts]
    assert bytes(shapes.merged(shapes.split(packet.entries, live), live)) == packet.entries


def tokens(engine: Engine, steps: int = 20) -> list[int | None]:
    """Decode slot 1."""
    found = []
    for _ in range(steps):
        found.append(engine.sample().read()[1][0].token)
        engine.forward()
    return found


@pytest.mark.slow  # processes
@pytest.mark.usefixtures("compiled")
def test_a_request_goes_from_two_ranks_to_one_and_back(folders: dict[str, Path]) -> None:
    config: EngineConfig = tiny.config(folders["llama"], threads=1)
    asked = tiny.request(prompt(120), temperature=0.9, seed=5)
    one, expecting = local.build(config), local.build(config)
    tiny.enter(expecting, asked, slot=1)
    expected = tokens(expecting, 40)
    two = build(replace(config, rank=Rank(0, 2)))
    assert isinstance(two, RankedEngine)
    try:
        tiny.enter(two, asked, slot=2)  # type: ignore[arg-type]
        one.restore(two.export(2), 1)
        two.release(2)
        assert tokens(one) == expected[:20]
        two.restore(one.export(1), 1)
        assert tokens(two) == expected[20:]
        packet = one.export(1)
        with pytest.raises(InvalidRequest, match="bytes"):
            two.restore(packet._replace(entries=packet.entries[4:]), 0)
    finally:
        two.close()
    assert not others()


@pytest.mark.slow  # processes
@pytest.mark.usefixtures("compiled")
def test_a_request_goes_to_ranks_that_divide_the_slots_and_back(folders: dict[str, Path]) -> None:
    """Both ranks' slots take part: slot 1 is the second rank's."""
    config = tiny.config(folders["deepseek"], threads=1, slots=4)
    asked = tiny.request(prompt(120), temperature=0.9, seed=5)
    one, expecting = local.build(config), local.build(config)
    tiny.enter(expecting, asked, slot=1)
    expected = tokens(expecting, 60)
    two = build(replace(config, rank=Rank(0, 2), attention_parallel="slots"))
    assert isinstance(two, RankedEngine)
    try:
        tiny.enter(one, asked, slot=1)
        assert tokens(one) == expected[:20]
        two.restore(one.export(1), 1)
        assert tokens(two) == expected[20:40]
        one.release(1)
        one.restore(two.export(1), 1)
        assert tokens(one) == expected[40:]
    finally:
        two.close()
    assert not others()
