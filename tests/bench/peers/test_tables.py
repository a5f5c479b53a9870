from dataclasses import replace

from bench.peers.cells import PeerCell, shown
from bench.results import cells_of, fields_of

CELL = PeerCell(engine="vllm", prompt=512, requests=4, weights="bf16", kept=512, step_s=0.0123, ringkv_decodes=2.0)


def test_columns_without_a_figure_are_left_out() -> None:
    head, _, row = shown([CELL]).splitlines()
    assert "step ms" in head
    assert "peak memory" not in head
    assert "| 12.3 | 2.00x |" in row


def test_an_engine_without_figures_says_why() -> None:
    cell = PeerCell(engine="vllm", prompt=512, requests=4, weights="bf16", kept=512, why="ended with SIGSEGV")
    assert "vllm: n/a (ended with SIGSEGV)" in shown([CELL, cell])


def test_cells_come_back_from_their_figures_and_unknown_fields_are_left_out() -> None:
    figures = [figure | {"of_a_later_version": 1, "run": "today"} for figure in [fields_of(CELL)]]
    assert cells_of(PeerCell, figures) == [replace(CELL, run="today")]
