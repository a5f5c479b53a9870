"""data: the folder of real texts and traces, which are not part of the repository; docs/accuracy.md lists them."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("RINGKV_DATA") or REPOSITORY.parent / "shared" / "data")
