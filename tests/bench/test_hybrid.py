"""The hybrid benchmark on a short prompt."""

import json
import sys
from pathlib import Path

import pytest

from bench import hybrid


@pytest.mark.parametrize(("tolerance", "status"), [(1e-4, 0), (0.0, 1)])
def test_an_answer_equals_transformers_or_the_command_fails(
    tolerance: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("WINDOW", 32), ("LAYERS", 3), ("EVERY", 3), ("BUDGET", 64), ("TOLERANCE", tolerance)):
        monkeypatch.setattr(hybrid, name, value)
    to = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["hybrid", "--tokens", "200", "--steps", "4", "--to", f"{to}"])
    with pytest.raises(SystemExit) as ended:
        hybrid.main()
    assert ended.value.code == status
    assert "| 64 entries | window layers | 2 | 32 |" in capsys.readouterr().out
    found = [json.loads(line) for line in to.read_text().splitlines()]
    assert [one["value"] for one in found if one["metric"] == "same"] == [1]
