"""TriAttention's scores, compared with loops over complex numbers in float64."""

import cmath
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from ringkv.cache.watching.triattention import OFFSETS, ExpectedQueries, Rotary, score
from ringkv.models.layer import RopeConfig
from ringkv.models.rope import frequencies
from ringkv.models.rotary import pair_lengths, rotate, rotation

HEADS, GROUPS, WIDTH, TOKENS, SEEN = 2, 3, 12, 9, 700
ROPES = {
    "halves": RopeConfig(10_000.0),
    "pairs": RopeConfig(10_000.0, interleaved=True),
    "partial": RopeConfig(10_000.0, width=8),
    "partial-pairs": RopeConfig(500.0, width=6, interleaved=True),
    "yarn": RopeConfig(10_000.0, "yarn", factor=4.0, original_context=256),
    "linear": RopeConfig(10_000.0, "linear", factor=8.0),
    "proportional": RopeConfig(10_000.0, "proportional", fraction=0.5),
}
POSITIONS = torch.tensor([0, 1, 5, 6, 90, 400, 401, 698, 699])


def rotary(rope: RopeConfig, device: str = "cpu") -> Rotary:
    angles = frequencies(rope, WIDTH)[0].to(device)

    def rotated(x: Tensor, positions: Tensor) -> Tensor:
        by, rows = rotation(positions, angles, 1.0, torch.float32), x.float().movedim(-2, 0)
        return rotate(rows.flatten(1, -2), by, rope.interleaved).view_as(rows).movedim(0, -2)

    return Rotary(rotated, partial(pair_lengths, rotated=2 * len(angles), interleaved=rope.interleaved))


def pairs(rope: RopeConfig) -> list[tuple[int, int | None, float]]:
    """Return the elements of each pair, and its frequency; an element that does not rotate is alone."""
    width, (angles, _) = rope.width or WIDTH, frequencies(rope, WIDTH)
    half = width // 2
    places = [(2 * f, 2 * f + 1) if rope.interleaved else (f, f + half) for f in range(half)]
    found: list[tuple[int, int | None, float]] = [
        (*place, angle) for place, angle in zip(places, angles.tolist(), strict=True)
    ]
    return found + [(at, None, 0.0) for at in range(width, WIDTH)]


def number(vector: Tensor, first: int, second: int | None) -> complex:
    return complex(float(vector[first]), 0.0 if second is None else float(vector[second]))


def expected(rope: RopeConfig, queries: Tensor) -> ExpectedQueries:
    """Return what is expected of queries [N, H, G, D] before rotation."""
    how = rotary(rope)
    return ExpectedQueries.of(queries.mean(0), how.lengths(queries).mean(0), how)


def cached(rope: RopeConfig, keys: Tensor, positions: Tensor) -> Tensor:
    """Rotate keys [H, n, D] by complex numbers in float64."""
    found = keys.double().clone()
    for head in range(HEADS):
        for at, position in enumerate(positions.tolist()):
            for first, second, angle in pairs(rope):
                if second is not None:
                    turned = number(keys[head, at], first, second) * cmath.exp(1j * position * angle)
                    found[head, at, first], found[head, at, second] = turned.real, turned.imag
    return found.float()


def paper(rope: RopeConfig, queries: Tensor, key: Tensor, distance: int) -> float:
    """Return the paper's score of one key before rotation, for the queries [N, D] of one head."""
    total = 0.0
    for first, second, angle in pairs(rope):
        each = [number(one, first, second) for one in queries.double()]
        mean, length = sum(each) / len(each), sum(map(abs, each)) / len(each)
        k = number(key.double(), first, second)
        between = cmath.phase(mean) - cmath.phase(k)
        waves = [math.cos((distance + offset) * angle + between) for offset in OFFSETS]
        total += abs(mean) * abs(k) * sum(waves) / len(waves) + (length - abs(mean)) * abs(k)
    return total


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_scores_are_the_papers_sums_over_complex_numbers(rope: RopeConfig) -> None:
    queries, keys = torch.randn(20, HEADS, GROUPS, WIDTH) + 1, torch.randn(HEADS, TOKENS, WIDTH)
    found = expected(rope, queries).scores(cached(rope, keys, POSITIONS), SEEN - 1)
    want = [
        [
            [paper(rope, queries[:, h, g], keys[h, at], SEEN - 1 - int(POSITIONS[at])) for at in range(TOKENS)]
            for g in range(GROUPS)
        ]
        for h in range(HEADS)
    ]
    # Positions of float32 angles are up to 65,536, which rounds a term of one offset by 0.004.
    torch.testing.assert_close(found, torch.tensor(want), atol=5e-3, rtol=1e-4)


def test_offsets_are_the_powers_of_two_up_to_65536() -> None:
    assert OFFSETS[:3] == (1, 2, 4)
    assert OFFSETS[-1] == 65_536
    assert len(OFFSETS) == 17


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_scores_do_not_depend_on_where_positions_begin(rope: RopeConfig) -> None:
    queries, keys = torch.randn(20, HEADS, GROUPS, WIDTH) + 1, torch.randn(HEADS, TOKENS, WIDTH)
    here = expected(rope, queries).scores(cached(rope, keys, POSITIONS), SEEN - 1)
    later = expected(rope, queries).scores(cached(rope, keys, POSITIONS + 3000), SEEN + 2999)
    torch.testing.assert_close(here, later, atol=5e-3, rtol=1e-4)
    other = expected(rope, queries).scores(cached(rope, keys, POSITIONS), SEEN + 2999)
    assert (here - other).abs().max() > 0.05


def test_entries_are_ranked_by_the_query_head_that_ranks_them_highest_among_those_that_may_go() -> None:
    """So each head's best, and of their union the best by the highest score, are the entries with the highest worth."""
    rope = ROPES["halves"]
    queries, keys = torch.randn(20, HEADS, GROUPS, WIDTH) + 1, torch.randn(HEADS, TOKENS, WIDTH)
    is_fixed = torch.zeros(HEADS, TOKENS, dtype=torch.bool)
    is_fixed[:, [0, 8]] = True
    of = expected(rope, queries)
    turned = cached(rope, keys, POSITIONS)
    found, raw = score(turned, of, SEEN, is_fixed), of.scores(turned, SEEN - 1).double()
    assert found.min() >= 0
    for head in range(HEADS):
        free = range(1, TOKENS - 1)
        ranked = []
        for group in range(GROUPS):
            values = [float(raw[head, group, at]) for at in free]
            mean = sum(values) / len(values)
            deviation = math.sqrt(sum((one - mean) ** 2 for one in values) / len(values))
            ranked.append({at: (value - mean) / deviation for at, value in zip(free, values, strict=True)})
        for budget in range(1, len(free)):
            union = {at for by in ranked for at in sorted(by, key=lambda at: -by[at])[:budget]}
            want = sorted(union, key=lambda at: -max(by[at] for by in ranked))[:budget]
            assert set(sorted(free, key=lambda at: -float(found[head, at]))[:budget]) == set(want)


def test_equal_keys_are_worth_the_same() -> None:
    rope, none = ROPES["proportional"], torch.zeros(HEADS, 4, dtype=torch.bool)
    keys = torch.ones(HEADS, 4, WIDTH)
    found = score(cached(rope, keys, torch.tensor([7, 7, 7, 7])), expected(rope, torch.randn(5, 2, 3, WIDTH)), 9, none)
    assert not found.any()
