"""What the disk refuses under a lock is one sentence with a remedy."""

import errno
from pathlib import Path

import pytest

from ringkv.base.errors import BadCache
from ringkv.base.progress import silent
from ringkv.residency.lock import locked


def test_a_cache_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with (
        pytest.raises(BadCache, match=r"cache/models .*Not a directory"),
        locked(tmp_path / "cache" / "models" / "m.gguf", silent),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "free disk space"), (errno.EROFS, "make it writable"), (errno.EIO, None)]
)
def test_errors_of_the_disk_while_a_file_is_written_have_their_remedy(
    tmp_path: Path, code: int, remedy: str | None
) -> None:
    with pytest.raises(BadCache if remedy else OSError, match=remedy), locked(tmp_path / "m.gguf", silent):
        raise OSError(code, "no")
