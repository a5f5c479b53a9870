import pytest

from bench.peers.workload import ROOM, budget, fitting, prompts


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_prompts_are_different_and_have_exactly_the_requested_length() -> None:
    found = prompts(Letters(), 6, 3000)  # type: ignore[arg-type]
    assert {len(tokens) for tokens in found} == {3000}
    assert len({tuple(tokens) for tokens in found}) == 6


def test_the_first_prompts_do_not_depend_on_the_count() -> None:
    assert prompts(Letters(), 2, 500) == prompts(Letters(), 4, 500)[:2]  # type: ignore[arg-type]


def test_a_prompt_leaves_room_for_output_in_the_context() -> None:
    assert fitting(8192, 8192) == 8192 - ROOM
    assert fitting(4096, 8192) == 4096


@pytest.mark.parametrize("prompt", [512, 4096, 7680, 16384])
def test_what_is_kept_is_a_quarter_in_whole_blocks(prompt: int) -> None:
    assert budget(prompt) % 32 == 0
    assert prompt / 4 - 32 < budget(prompt) <= prompt / 4
