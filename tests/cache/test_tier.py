"""Memory of the host that a GPU addresses, with a stand-in for CUDA's runtime; `tests/device` has the real one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ringkv.base.errors import InvalidRequest
from ringkv.cache.tier import pinned

LIKE: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)


def runtime(monkeypatch: pytest.MonkeyPatch, error: int) -> list[tuple[str, int, int]]:
    """Replace CUDA's runtime, and return its calls: the name, the address and the bytes."""
    calls: list[tuple[str, int, int]] = []

    def register(address: int, size: int, flags: int) -> int:
        calls.append(("pin", address, size))
        return error

    def unregister(address: int) -> int:
        calls.append(("unpin", address, 0))
        return 0

    fake = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    return calls


def test_memory_is_pinned_to_the_byte_and_unpinned_when_its_last_view_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = runtime(monkeypatch, error=0)
    made = pinned(LIKE)((3, 50, 7))
    address, view = made.data_ptr(), made[1]
    assert (made.shape, made.dtype, bool(made.any())) == ((3, 50, 7), torch.bfloat16, False)
    assert calls == [("pin", address, 3 * 50 * 7 * 2)]
    del made
    view.fill_(1)
    assert len(calls) == 1
    del view
    assert calls[1:] == [("unpin", address, 0)]


def test_memory_that_cannot_be_pinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = runtime(monkeypatch, error=2)
    with pytest.raises(InvalidRequest, match=r"2,000 bytes .*CUDA error 2") as bad:
        pinned(LIKE)((1000,))
    assert bad.value.param == "kv_tier"
    assert [name for name, *_ in calls] == ["pin"]
