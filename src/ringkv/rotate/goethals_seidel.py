"""goethals_seidel: a Hadamard matrix of order 4 n from four circulant matrices of odd order n (Goethals, Seidel 1967).

Candidates for the circulant matrices' first rows do not change if positions are multiplied by some units modulo n.
They are few. N sequences of n elements.
"""

from itertools import product
from math import gcd

import torch
from torch import Tensor

MOST_ORBITS = 11  # a search compares the pairs of 2 ** orbits sequences
MOST_PAIRS = 1 << 20

Orbits = tuple[tuple[int, ...], ...]


def matrix(size: int) -> Tensor | None:
    """Return float64 [4 size, 4 size]; None if the search has no result, or the size is even."""
    if size % 2 == 0:
        return None
    each = (_four_rows(size, orbits) for orbits in _symmetries(size))
    rows = next((rows for rows in each if rows is not None), None)
    if rows is None:
        return None
    index = torch.arange(size)
    a, b, c, d = (row[(index - index[:, None]) % size] for row in rows.double())
    # Each times the matrix that reverses columns.
    b, c, d, bt, ct, dt = (circulant.flip(1) for circulant in (b, c, d, b.T, c.T, d.T))
    blocks = ((a, b, c, d), (-b, a, dt, -ct), (-c, -dt, a, bt), (-d, ct, -bt, a))
    return torch.cat([torch.cat(row, 1) for row in blocks])


def _symmetries(size: int) -> list[Orbits]:
    """Return the orbits of 1 .. size-1 under multiplication by one or two units, few enough, fewest first."""
    units = [unit for unit in range(1, size) if gcd(unit, size) == 1]
    every = {_orbits(size, pair) for pair in product(units, units) if pair[0] <= pair[1]}
    few = [orbits for orbits in every if len(orbits) <= MOST_ORBITS]
    return sorted(few, key=lambda orbits: (len(orbits), orbits))


def _orbits(size: int, units: tuple[int, int]) -> Orbits:
    left, orbits = set(range(1, size)), []
    while left:
        orbit, new = set[int](), {min(left)}
        while new:
            orbit |= new
            new = {number * unit % size for number in new for unit in units} - orbit
        orbits.append(tuple(sorted(orbit)))
        left -= orbit
    return tuple(orbits)


def _four_rows(size: int, orbits: Orbits) -> Tensor | None:
    """Return four sequences [4, n] whose autocorrelations add up to zero at every shift; None if there are none.

    A random projection hashes the sums of two sequences' autocorrelations. Sums with opposite hashes are compared in
    full.
    """
    rows, correlations = _sequences(size, orbits)
    first, second = torch.triu_indices(len(rows), len(rows))
    if len(first) > MOST_PAIRS or not len(first):
        return None
    projection = torch.randint(1 << 40, (correlations.shape[1],), generator=torch.Generator().manual_seed(0))
    hashes = (correlations * projection).sum(1)
    sums = hashes[first] + hashes[second]
    order = sums.argsort()
    place = torch.searchsorted(sums[order], -sums).clamp(max=len(sums) - 1)
    for pair in (sums[order][place] == -sums).nonzero()[:, 0]:
        other = order[place[pair]]
        four = torch.stack([first[pair], second[pair], first[other], second[other]])
        if not correlations[four].sum(0).any():
            return rows[four]
    return None


def _sequences(size: int, orbits: Orbits) -> tuple[Tensor, Tensor]:
    """Return sequences of 1 and -1, [N, n], and their periodic autocorrelations, int64 [N, n // 2], which differ.

    A power spectrum above 4 n cannot be a part of the sum.
    """
    signs = torch.tensor(list(product((1.0, -1.0), repeat=len(orbits))), dtype=torch.float64).view(-1, len(orbits))
    rows = torch.ones(len(signs), size, dtype=torch.float64)
    for index, orbit in enumerate(orbits):
        rows[:, list(orbit)] = signs[:, index, None]
    spectrum = torch.fft.fft(rows).abs() ** 2
    possible = spectrum.amax(1) < 4 * size + 1e-6
    if not possible.any():
        return rows[:0], torch.empty(0, size // 2, dtype=torch.int64)
    correlations = torch.fft.ifft(spectrum[possible]).real.round().long()[:, 1 : size // 2 + 1]
    unique, place = torch.unique(correlations, dim=0, return_inverse=True)
    sequence = torch.empty(len(unique), dtype=torch.int64).scatter_(0, place, torch.arange(len(place)))
    return rows[possible][sequence], unique
