"""What slots in the format zipcache hold, as a prompt fills them and tokens are added."""

import pytest
import torch

from ringkv.base.zip_sizes import CHUNK, ZipSizes
from ringkv.kernels import zip_codes as codes
from ringkv.kernels import zip_tokens
from ringkv.kernels.zip_slots import ZipSlots
from ringkv.kernels.zip_tokens import append, decoded, salient
from tests.kernels.zip_slots import filled, made, tokens


def in_order(slot: ZipSlots, keys: torch.Tensor) -> list[list[int]]:
    """Return which of some keys [H, n, D] each decoded one is closest to, by head."""
    return torch.cdist(decoded(slot)[0], keys.float()).argmin(-1).tolist()


@pytest.mark.parametrize(
    ("n", "fixed", "counts"),
    [
        (300, 300, [4, 0, 296, 0, 0]),
        (300, 40, [4, 60, 36, 2, 0]),
        (300, 0, [0, 100, 0, 2, 0]),
        (41, 40, [4, 1, 36, 0, 0]),
        (3, 3, [3, 0, 0, 0, 0]),
        (1, 0, [0, 1, 0, 0, 0]),
    ],
)
def test_a_prompt_is_sinks_a_chunk_that_stays_chunks_of_100_and_a_buffer(n: int, fixed: int, counts: list[int]) -> None:
    slots = made(2, 2, 64, 320)
    keys, values, _ = filled(slots, 1, n, fixed)
    slot = slots.of(1)
    assert slot.held() == counts
    found = decoded(slot)
    plain = counts[0] + counts[1]
    newest = [*range(counts[0]), *range(n - counts[1], n)]
    assert torch.equal(found[0][:, :plain], keys[:, newest])
    assert torch.equal(found[1][:, :plain], values[:, newest])
    for head, own in enumerate(in_order(slot, keys)):
        assert sorted(own) == list(range(n)), head


def test_chunks_of_a_prompt_that_are_encoded_together_have_the_bytes_of_each_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for at_once in (1, 3):
        monkeypatch.setattr(zip_tokens, "AT_ONCE", at_once)
        slots = made(1, 2, 64, 900)
        filled(slots, 0, 800, 60)
        assert slots.of(0).held()[3] == 7
        found.append([tensor.nan_to_num(-1) for tensor in slots])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_salient_tokens_of_a_chunk_have_4_bits() -> None:
    slots = made(1, 2, 64, 320)
    keys, _, saliency = filled(slots, 0, 250, 250)
    for head, own in enumerate(in_order(slots.of(0), keys)):
        ranked = saliency[head, 4:].sort(descending=True).indices + 4
        assert own[4 : 4 + 148] == ranked[:148].sort().values.tolist()  # 60% of 246, rounded up
        assert own[4 + 148 :] == ranked[148:].sort().values.tolist()


def test_equal_tokens_are_salient_in_the_order_of_the_prompt() -> None:
    first, others = salient(torch.tensor([[0.5, 0.7, 0.5, 0.5, 0.1]]), 3)
    assert first.tolist() == [[0, 1, 2]]
    assert others.tolist() == [[3, 4]]


def test_a_full_buffer_becomes_the_chunk_that_its_tokens_make_alone() -> None:
    slots = made(1, 2, 64, 320)
    filled(slots, 0, 50, 20)
    keys, values = tokens(2, 80, 64, 7)
    slot = slots.of(0)
    for at in range(70):
        append(slot, keys[:, at], values[:, at], 51 + at)
    slot.attention[:] = torch.rand(2, CHUNK)
    own = slice(4, 4 + CHUNK)
    chunk, spent = (slot.plain_keys[:, own].clone(), slot.plain_values[:, own].clone()), slot.attention.clone()
    assert slot.held() == [4, 100, 16, 0, 0]
    append(slot, keys[:, 70], values[:, 70], 121)
    assert slot.held() == [4, 1, 16, 1, 0]
    high, low = salient(spent / torch.arange(100, 0, -1), 60)
    index = high[..., None].expand(-1, -1, 64)
    expected, channels = codes.encode_keys(chunk[0].gather(1, index), 4)
    assert torch.equal(slot.high_keys[:, 10:70], expected)  # chunk 0 has 16 tokens, 10 of them salient
    assert torch.equal(slot.key_channels[:, 1, :2], channels)
    factors = codes.value_factors(chunk[1])
    expected, ranges = codes.encode_values(chunk[1].gather(1, low[..., None].expand(-1, -1, 64)), factors, 2)
    assert torch.equal(slot.low_values[:, 6:46], expected)
    assert torch.equal(slot.value_ranges[:, ZipSizes.of(320).high :][:, 6:46], ranges)
    assert torch.equal(slot.value_factors[:, 1], factors)


@pytest.mark.parametrize(("ring", "chunks"), [(300, 3), (256, 3), (100, 1), (90, 1), (1, 1)])
def test_a_ring_shows_all_its_tokens_and_drops_the_oldest_chunk_as_a_whole(ring: int, chunks: int) -> None:
    fixed = 20
    slots = made(1, 1, 64, fixed + ring)
    prompt = filled(slots, 0, fixed + 1, fixed)
    added = tokens(1, 650, 64, 3)
    slot, all_keys = slots.of(0), torch.cat((prompt[0], added[0]), 1)
    for at in range(650):
        n = fixed + 1 + at + 1
        append(slot, added[0][:, at], added[1][:, at], min(n, fixed + ring))
        assert slot.held()[3] <= chunks
        if at % 97 == 0 or at > 640:
            (own,) = in_order(slot, all_keys)
            oldest = min(one for one in own if one >= fixed)
            assert sorted(own) == [*range(fixed), *range(oldest, n)]
            assert n - oldest >= min(ring, n - fixed)
            assert len(own) < fixed + ring + 2 * CHUNK
    assert slot.held()[3] == chunks


def test_the_bytes_of_a_token_never_change_once_it_is_encoded() -> None:
    slots = made(1, 2, 64, 800)
    filled(slots, 0, 300, 90)
    slot = slots.of(0)
    before = [tensor.clone() for tensor in slot]
    for at, (key, value) in enumerate(zip(*(x.unbind(1) for x in tokens(2, 260, 64, 5)), strict=True)):
        append(slot, key, value, 301 + at)
    high, low = 52 + 2 * 60, 34 + 2 * 40  # of 86 tokens that stay, and of two chunks
    assert slot.held()[3] == 2 + 2
    for name, count in {"high_keys": high, "low_keys": low, "key_channels": 3, "value_factors": 3}.items():
        place = ZipSlots._fields.index(name)
        assert torch.equal(slot[place][:, :count], before[place][:, :count])
    for name, count in {"high_values": high, "low_values": low, "value_ranges": high}.items():
        place = ZipSlots._fields.index(name)
        assert torch.equal(slot[place][:, :count], before[place][:, :count])


def test_a_slot_is_the_same_beside_any_other() -> None:
    alone, beside = made(1, 2, 64, 320), made(3, 2, 64, 320)
    for other in (0, 2):
        filled(beside, other, 280, 100, seed=other + 5)
        beside.of(other).plain_values.mul_(1e4)
    for slots, at in ((alone, 0), (beside, 1)):
        filled(slots, at, 250, 30)
        for key, value in zip(*(x.unbind(1) for x in tokens(2, 150, 64, 9)), strict=True):
            append(slots.of(at), key, value, 300)
    assert all(torch.equal(one, other) for one, other in zip(decoded(alone.of(0)), decoded(beside.of(1)), strict=True))


def test_the_attention_of_prompt_tokens_in_the_buffer_counts_like_that_of_as_many_steps() -> None:
    slots = made(1, 2, 64, 320)
    _, _, saliency = filled(slots, 0, 70, 20)
    torch.testing.assert_close(slots.of(0).attention[:, :50], saliency[:, 20:] * torch.arange(50, 0, -1))
