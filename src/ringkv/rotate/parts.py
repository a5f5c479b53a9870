"""Parts: the computed parts of a rotated checkpoint, on disk, from which an interrupted run resumes.

OUT.partial/  job.json, part-00000.safetensors (the tables), part-00001.safetensors (the first layer) ...,
              hidden.safetensors (the calibration's hidden states before the next layer)

Files are renamed when they are complete.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ringkv.base.errors import InvalidRequest
from ringkv.base.json_file import read_object
from ringkv.machine.folders import replacing

JOB, HIDDEN = "job.json", "hidden.safetensors"
AFTER = "after"  # number of the part that the hidden states come from


class Parts:
    """Parts of one job. A folder with parts of another job is emptied."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        """Raises InvalidRequest if the folder was not made by a job."""
        self.folder = folder
        path = folder / JOB
        if folder.exists() and not path.is_file() and any(folder.iterdir()):
            raise InvalidRequest(f"{folder} is in the way of the new checkpoint's parts; move it away, or delete it")
        if not path.is_file() or read_object(path) != job:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with replacing(path) as new:
                new.write_text(json.dumps(job), encoding="utf-8")

    def path(self, part: int) -> Path:
        return self.folder / f"part-{part:05}.safetensors"

    def done(self) -> int:
        """Return how many parts are complete, from the first on."""
        part = 0
        while self.path(part).is_file():
            part += 1
        return part

    def write(self, part: int, tensors: Mapping[str, Tensor]) -> None:
        with replacing(self.path(part)) as new:
            save_file(dict(tensors), new)

    def write_hidden(self, part: int, hidden: Tensor) -> None:
        """Write the hidden states after the layer of this part."""
        with replacing(self.folder / HIDDEN) as new:
            save_file({HIDDEN: hidden}, new, {AFTER: str(part)})

    def read_hidden(self) -> tuple[int, Tensor] | None:
        """Return the hidden states that were written last, after the number of their part; None if there are none."""
        path = self.folder / HIDDEN
        if not path.is_file():
            return None
        with safe_open(path, framework="pt") as file:
            return int(file.metadata()[AFTER]), file.get_tensor(HIDDEN)

    def tensor(self, part: int, name: str) -> Tensor:
        """Read a tensor of a part."""
        with safe_open(self.path(part), framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def remove(self) -> None:
        shutil.rmtree(self.folder)
