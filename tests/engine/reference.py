"""The reference of decode attention in place of the C++ kernel; for tests."""

from typing import Any

import pytest

from ringkv.engine import functions
from ringkv.kernels import decode_attend_reference, latent_slots
from ringkv.kernels.attended import Attended


def decode_attend(*arguments: Any) -> Attended:
    """Run the reference with the arguments of `kernels.decode_attend.decode_attend`."""
    return Attended(*decode_attend_reference.decode_attend(*arguments))


def use_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eager steps run the reference, of latents, too."""
    for module in (functions, latent_slots):
        monkeypatch.setattr(module, "decode_attend", decode_attend)
