"""Torch's thread count and accelerators. The only module of the doctor that imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    name: str  # "cpu", "cuda:0"
    model: str
    memory: int  # bytes
    free: int  # bytes


@dataclass(frozen=True)
class TorchFacts:
    threads: int
    devices: tuple[Device, ...]  # accelerators only


def torch_facts() -> TorchFacts | None:
    """Return None if torch is not installed or cannot be loaded."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchFacts(
        threads=torch.get_num_threads(),
        devices=tuple(_device(index) for index in range(count)),
    )


def _device(index: int) -> Device:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return Device(f"cuda:{index}", torch.cuda.get_device_name(index), total, free)
