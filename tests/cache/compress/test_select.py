"""Each selector against its paper's formula, written with loops and complex numbers."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ringkv.base.errors import PromptTooLong
from ringkv.base.repeat_words import RepeatWords
from ringkv.base.selectors import SELECTORS, TOVA, KeyDiff, KVzip, Selector
from ringkv.cache.compress import kvzip
from ringkv.cache.compress.select import VOTES, votes_of_layers
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.steps import finished
from tests.refusals import refusal

SCALE = 0.29  # differs from every head_dim ** -0.5
LAYERS, HEADS, GROUPS, WINDOW, WIDTH, N = 2, 2, 3, 6, 8, 40
LOW, HIGH = 3, 30
FREQUENCIES = torch.tensor([1.0, 0.3, 0.1, 0.03])


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate by multiplying complex numbers; real parts are the first half of a vector."""
    pairs = torch.complex(*x.float().chunk(2, dim=-1))
    rotated = pairs * torch.polar(torch.ones(len(positions), 4), positions[:, None] * FREQUENCIES)
    return torch.cat((rotated.real, rotated.imag), -1)


@pytest.fixture
def prompt() -> StagedPrompt:
    q = rotate(torch.randn(LAYERS, HEADS, GROUPS, WINDOW, WIDTH) + 0.5, torch.arange(N - WINDOW, N))
    keys = rotate(torch.randn(LAYERS, HEADS, N, WIDTH), torch.arange(N))
    return StagedPrompt(q, keys, torch.randn(LAYERS, HEADS, N, WIDTH), SCALE, repeat, repeat_limit=18)


def repeat(start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random queries and keys that depend on the token alone, in pieces of four."""
    keys = 2 * torch.stack([_of_token(token, HEADS) for token in range(start, stop)], 2)
    queries = 2 * torch.stack([_of_token(token, HEADS * GROUPS) for token in range(start, stop)], 2)
    queries = queries.view(LAYERS, HEADS, GROUPS, -1, WIDTH)
    for at in range(0, stop - start, 4):
        yield queries[:, :, :, at : at + 4], keys[:, :, : min(at + 4, stop - start)]


def _of_token(token: int, rows: int) -> Tensor:
    return torch.randn(LAYERS, rows, WIDTH, generator=torch.Generator().manual_seed(1000 * rows + token))


def votes_of_all(prompt: StagedPrompt, selector: Selector) -> Tensor:
    """float32 [L, H, candidates]."""
    return finished(votes_of_layers(prompt, LOW, HIGH, selector))


def test_every_selector_is_registered_and_votes_for_each_candidate(prompt: StagedPrompt) -> None:
    assert set(VOTES) == set(SELECTORS.values())
    for kind, votes in VOTES.items():
        layers = [got for got in votes(prompt, LOW, HIGH, kind()) if got is not None]
        assert [(got.shape, got.dtype) for got in layers] == [((HEADS, HIGH - LOW), torch.float32)] * LAYERS
        assert all(got.isfinite().all() for got in layers)


def test_tova_is_the_last_querys_attention_equal_for_all_heads(prompt: StagedPrompt) -> None:
    got = votes_of_all(prompt, TOVA())
    for layer in range(LAYERS):
        rows = [
            (prompt.keys[layer, h] @ prompt.q[layer, h, g, -1] * SCALE).softmax(0)
            for h in range(HEADS)
            for g in range(GROUPS)
        ]
        want = sum(rows)[LOW:HIGH] / (HEADS * GROUPS)
        for h in range(HEADS):
            torch.testing.assert_close(got[layer, h], want)


def test_keydiff_is_one_less_the_cosine_to_the_mean_direction(prompt: StagedPrompt) -> None:
    got = votes_of_all(prompt, KeyDiff())
    for layer in range(LAYERS):
        for h in range(HEADS):
            keys = prompt.keys[layer, h]
            anchor = torch.stack([key / key.norm() for key in keys]).mean(0)
            want = [1 - float(keys[j] @ anchor / (keys[j].norm() * anchor.norm())) for j in range(LOW, HIGH)]
            torch.testing.assert_close(got[layer, h], torch.tensor(want), atol=1e-5, rtol=1e-5)


def test_kvzip_is_the_highest_weight_of_any_query_of_the_repetition(prompt: StagedPrompt) -> None:
    got = votes_of_all(prompt, KVzip())
    for layer in range(LAYERS):
        for h in range(HEADS):
            want = [0.0] * N
            for start in range(0, N, 18 - kvzip.LEAD):  # the limit, less the context before a chunk
                stop, first = min(start + 10, N), max(0, start - kvzip.LEAD)
                repeated = range(first, stop)
                for place, token in enumerate(repeated):
                    queries = 2 * _of_token(token, HEADS * GROUPS)[layer].view(HEADS, GROUPS, WIDTH)[h]
                    own = [2 * _of_token(one, HEADS)[layer, h] for one in repeated[: place + 1]]
                    seen = torch.stack([*prompt.keys[layer, h, :4], *prompt.keys[layer, h, start:stop], *own])
                    weights = (queries @ seen.T * SCALE).softmax(-1)[:, 4 : 4 + stop - start].amax(0)
                    for token_seen, weight in zip(range(start, stop), weights.tolist(), strict=True):
                        want[token_seen] = max(want[token_seen], weight)
            torch.testing.assert_close(got[layer, h], torch.tensor(want[LOW:HIGH]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("selector", [KeyDiff(), KVzip()])
def test_a_common_offset_of_all_keys_hides_no_difference_in_bfloat16(prompt: StagedPrompt, selector: Selector) -> None:
    """Keys of Qwen2 have large biases: scores are in the hundreds, and only their last few units matter."""

    def shifted(kind: torch.dtype) -> StagedPrompt:
        def shifted_repeat(start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
            return (((q + 2).bfloat16().to(kind), (keys + 40).bfloat16().to(kind)) for q, keys in repeat(start, stop))

        keys, values = ((one + 40).bfloat16().to(kind) for one in (prompt.keys, prompt.values))
        return prompt._replace(q=(prompt.q + 2).bfloat16().to(kind), keys=keys, values=values, repeat=shifted_repeat)

    narrow, wide = (votes_of_all(shifted(kind), selector) for kind in (torch.bfloat16, torch.float32))
    torch.testing.assert_close(narrow, wide, atol=1e-4, rtol=1e-2)


def test_kvzip_without_room_to_repeat_is_refused(prompt: StagedPrompt) -> None:
    with refusal("prompt", "40 tokens", PromptTooLong):
        votes_of_all(prompt._replace(repeat_limit=kvzip.LEAD), KVzip())


def test_kvzip_repeats_no_more_with_its_words_than_there_is_room_for(prompt: StagedPrompt) -> None:
    words, calls = RepeatWords((1, 2), (1, 2, 3)), []

    def counted(start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        calls.append((start, stop))
        return repeat(start, stop)

    votes_of_all(prompt._replace(repeat=counted, words=lambda: words), KVzip())
    assert [stop for _, stop in calls] == [7, 14, 21, 28, 35, 40]  # 18, less 8 before a chunk and 3 words
    assert all(len(words.before(start)) + stop - start <= 18 for start, stop in calls)
