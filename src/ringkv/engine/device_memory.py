"""Free memory of a GPU, for the planner: read in this process, or in one of its own where torch must not be loaded.

python -m ringkv.engine.device_memory cuda:0        prints bytes, or exits with 1 and a sentence
"""

import os
import subprocess
import sys

from ringkv.base.errors import InvalidRequest, RingKVError

LIMIT_S = 120.0  # importing torch and opening the device


def free_bytes(device: str | None) -> int | None:
    """Return what is free on a GPU, or None for a CPU, without loading torch.

    Raises InvalidRequest for a device that is not there.
    """
    if device in (None, "cpu"):
        return None
    import torch

    from ringkv.engine.device import find_device

    gpu = find_device(str(device))
    return int(torch.cuda.mem_get_info(gpu)[0]) if gpu.type == "cuda" else None


def free_bytes_elsewhere(device: str | None) -> int | None:
    """Return `free_bytes`, read in another process, which then gives back what it took on the device."""
    if device is None or device.partition(":")[0] == "cpu":
        return None
    command = [sys.executable, "-P", "-m", "ringkv.engine.device_memory", str(device)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=env)
    except subprocess.TimeoutExpired as error:
        raise RingKVError(
            f"reading the memory of {device} took over {LIMIT_S:g} s; see whether the GPU hangs"
        ) from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise InvalidRequest(last[0] if last else f"device {device!r} cannot be read", "device")
    return int(done.stdout)


def main() -> None:
    try:
        print(free_bytes(sys.argv[1]) or 0)
    except RingKVError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
