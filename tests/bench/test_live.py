import pytest

from bench.live import Round, measure, shown, watching
from ringkv.text.tokenizer import Tokenizer
from tests import byte_tokenizer
from tests.server.conftest import serving
from tests.server.echo import channel


def test_both_are_measured_in_each_round_and_their_order_changes() -> None:
    asked = []

    def run(watchers: int) -> float:
        asked.append(watchers)
        return 100.0 if watchers == 0 else 99.0 - len(asked) / 10

    found = measure(run, 3)
    assert asked == [0, 4, 4, 0, 0, 4]
    assert [one.alone for one in found] == [100.0] * 3
    assert [one.cost for one in found] == pytest.approx([0.012, 0.013, 0.016])


def test_the_cost_is_the_median_of_the_rounds() -> None:
    text = shown([Round(100, 99), Round(100, 60), Round(50, 49.6)])
    assert "a cost of 1.00%, under 2%" in text
    assert "ratio 0.9900 (rounds 0.6000 to 0.9920)" in text
    assert "NOT under" in shown([Round(100, 90)])


def test_a_watcher_reads_what_a_server_sends(tmp_path) -> None:
    folder = byte_tokenizer.save(tmp_path, "")
    with (
        serving(channel(0.01), Tokenizer.from_directory(folder), None) as served,
        watching(served.port) as count,
    ):
        before = count()
        served.post("completions", prompt="abc", max_tokens=60)
        assert count() > before
    assert served.engine.watched[0]
