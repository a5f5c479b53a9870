from pathlib import Path

import pytest

from bench import shape as module
from bench.shape import minutes, record, shape

BODY = '''"""Slots of int4 elements."""
from ringkv.base import errors
class Body:
    kv_page: int  # int8
class Pages(Body):
    def take(self, a, b, c, d, e, f, g, h): raise InvalidRequest("not implemented")
    def give(self, a, b, c, d, e, f, g, h, *i): raise InvalidRequest(f"int4 has {kv_page}")
@triton.jit
def kernel(a, b, c, d, e, f, g, h, i, j): pass
'''
FILES = {
    "src/ringkv/cache/body.py": BODY,
    "src/ringkv/base/errors.py": "def later():\n    from ringkv.base.words import said\n",
    "src/ringkv/base/words.py": "from ringkv.base import errors\n",
    "src/ringkv/kernels/cpu/add.h": "// int4\nint add_int8(int x);\n",
    "tests/test_body.py": "\n\n",
}


def test_a_small_tree_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "declared", lambda root: ["cache_attend", "decode_attend_any", "norm"])
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shape(tmp_path, [tmp_path / name for name in FILES]) == {
        "operators": 3,
        "decode attention operators": 2,
        "body classes": 2,
        "long signatures": 1,
        "refusals": 2,
        "refusals, not implemented": 1,
        "not implemented, in any text": 1,
        "import circles": "2",
        "lines of src, Python and C++": 14,
        "lines of bench, Python": 0,
        "lines of tests, Python": 2,
        "files that name int8": 1,
        "files that name int4": 1,
        "files that name fp8": 0,
        "files that name turbo4": 0,
        "settings named kv_": 1,
        "files of a setting, median": 1,
        "files of a setting, largest": 1,
    }


def test_a_commands_minutes_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    assert record("exit 3", path) == 3
    assert list(minutes(path)) == ["CPU minutes of `exit 3`"]
