"""Options from torchrun's variables."""

from dataclasses import replace

import pytest

from ringkv.cli.torchrun import Torchrun
from ringkv.plan.options import Options
from tests.refusals import refusal

ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}


def variables(rank: int, processes: int, local_rank: int, local: int, **others: str) -> dict[str, str]:
    ours = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local}
    return {**{name: str(value) for name, value in ours.items()}, **ADDRESS, **others}


def filled(environment: dict[str, str], options: Options = Options()) -> Options:  # noqa: B008 - frozen
    found = Torchrun.of(environment)
    assert found
    return found.fill(options)


SECOND_OF_TWO = Options(nnodes=2, node_rank=1, master_addr="10.0.0.1", master_port=29400)


def test_one_process_a_machine_is_a_node_of_the_ranks_that_the_user_wants() -> None:
    environment = variables(1, 2, 0, 1, GROUP_RANK="1")
    assert filled(environment, Options(tensor_parallel=8)) == replace(SECOND_OF_TWO, tensor_parallel=8)
    assert filled(environment) == replace(SECOND_OF_TWO, tensor_parallel=2)


@pytest.mark.parametrize("others", [{}, {"GROUP_RANK": "1"}])
def test_a_process_for_each_rank_is_one_node_a_machine(others: dict[str, str]) -> None:
    first, last = variables(4, 8, 0, 4, **others), variables(7, 8, 3, 4, **others)
    found = [Torchrun.of(one) for one in (first, last)]
    assert [one and one.is_first for one in found] == [True, False]
    assert filled(first) == replace(SECOND_OF_TWO, tensor_parallel=8)


def test_options_that_are_given_stay() -> None:
    given = Options(tensor_parallel=4, nnodes=4, node_rank=3, master_addr="10.0.0.9", master_port=1234)
    assert filled(variables(1, 2, 0, 1), given) == given


@pytest.mark.parametrize(
    "missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
)
def test_an_environment_without_all_variables_is_not_torchruns(missing: str) -> None:
    assert Torchrun.of({}) is None
    assert Torchrun.of({**variables(0, 2, 0, 1), missing: ""}) is None


def test_ranks_that_are_not_the_processes_are_refused() -> None:
    with refusal("tensor_parallel", "8 processes"):
        filled(variables(0, 8, 0, 4), Options(tensor_parallel=2))


@pytest.mark.parametrize("ours", [(0, 8, 0, 3), (8, 8, 0, 4), (0, 8, 4, 4), (0, 8, 0, 0)])
def test_variables_that_disagree_are_refused(ours: tuple[int, int, int, int]) -> None:
    with refusal("nnodes", "torchrun"):
        Torchrun.of(variables(*ours))


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "²"])
def test_a_variable_that_is_not_a_number_is_named(text: str) -> None:
    with refusal("nnodes", "WORLD_SIZE"):
        Torchrun.of({**variables(0, 2, 0, 1), "WORLD_SIZE": text})
