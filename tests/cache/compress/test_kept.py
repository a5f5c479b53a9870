"""The order of votes, against Python's sort."""

import torch

from ringkv.cache.compress.kept import top_votes


def test_the_highest_votes_win_whatever_their_signs_and_of_equal_votes_the_first() -> None:
    torch.manual_seed(0)
    votes = torch.cat((torch.randint(-3, 4, (4, 50)).float(), torch.randn(4, 50) * 1e-3), 1)
    votes[0, 3:6] = torch.tensor([float("-inf"), float("inf"), -0.0])
    for count in (1, 7, 40, 99):
        for row, got in zip(votes.tolist(), top_votes(votes, count).tolist(), strict=True):
            assert got == sorted(sorted(range(100), key=lambda place: (-row[place], place))[:count])
