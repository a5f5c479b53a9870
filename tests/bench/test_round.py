import toy
from toy import Chunk, ToyEngine

from ringkv.bench.round import run_round


def test_a_round_prefills_once_fills_every_slot_and_decodes() -> None:
    engine = ToyEngine(toy.limits(slots=3, chunk=8))
    done = run_round(engine, prompt_tokens=20, output_tokens=5)
    chunks = [line.work[2:] for line in engine.log if isinstance(line, Chunk)]
    assert chunks == [(0, 8), (8, 16), (16, 20)]
    assert engine.log[4:] == ["sample", "sample", *["forward", "sample"] * 4]
    assert len(done.steps) == 4
    assert engine.slots == {}
    assert 0 < done.prefill <= done.first_token


def test_live_is_the_average_of_the_entries_that_steps_read() -> None:
    done = run_round(ToyEngine(toy.limits(slots=1, capacity=22)), prompt_tokens=20, output_tokens=5)
    # 18 ring entries after 4 sinks hold the prompt's last 16; steps feed tokens 21, 22, 23, 24
    assert done.live == (21 + 22 + 22 + 22) / 4
