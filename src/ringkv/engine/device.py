"""The device that an engine runs on."""

import torch

from ringkv.base.errors import InvalidRequest
from ringkv.machine import processor


def find_device(name: str) -> torch.device:
    """Return the device, with its index if it is a GPU. Raises InvalidRequest if there is none of that name."""
    try:
        device = with_index(torch.device(name))
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidRequest(f"device {name!r} is unknown; choose cpu, cuda or cuda:N", "device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(f"device {name!r} was requested and torch sees no CUDA device; choose cpu", "device")
    if device.type == "cuda" and device.index >= (count := torch.cuda.device_count()):
        raise InvalidRequest(f"device {name!r} was requested, but the last is cuda:{count - 1}; choose it", "device")
    return device


def model_name(device: str | None) -> str:
    """Return the name of a GPU's model, or of the processor's."""
    gpu = find_device(device or "cpu")
    return torch.cuda.get_device_name(gpu) if gpu.type == "cuda" else processor.name()


def with_index(device: torch.device) -> torch.device:
    """Return cuda:0 for "cuda": torch's functions need an index."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
