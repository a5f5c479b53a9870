import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from ringkv.base.failure import failure_of
from ringkv.base.log_lines import INHERITED, REQUEST_ID, JsonFormatter, engine_id, http_id, json_line

SECRET = "the prompt\nof a user"


def test_a_line_is_one_object_with_the_time_in_utc() -> None:
    line = json_line("info", "two\nlines", number=3, absent=None)
    assert "\n" not in line
    found = json.loads(line)
    time = datetime.fromisoformat(found.pop("time"))
    assert found == {"level": "info", "event": "two\nlines", "number": 3}
    assert abs(datetime.now(UTC) - time) < timedelta(seconds=10)


def formatted(error: Exception, caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    try:
        raise error
    except ValueError as raised:
        failure_of("cmpl-1-0-0/mine-7", raised)
    found: dict[str, object] = json.loads(JsonFormatter().format(caplog.records[-1]))
    return found


def test_an_engines_line_has_the_request_and_the_place_of_an_error_but_not_its_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RINGKV_DEBUG", raising=False)
    found = formatted(ValueError(SECRET), caplog)
    assert found["level"] == "error"
    assert found["request_id"] == "mine-7"
    assert found["error"] == "ValueError"
    assert str(found["places"]).startswith("['test_log_lines.py:")
    assert "prompt" not in json.dumps(found)


def test_an_errors_text_is_in_the_line_if_ringkv_debug_is_set(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGKV_DEBUG", "1")
    assert "the prompt" in str(formatted(ValueError(SECRET), caplog)["traceback"])


def test_an_engines_id_carries_the_id_of_the_http_request() -> None:
    token = REQUEST_ID.set("mine/7")
    assert http_id(engine_id("cmpl-1-0-0")) == "mine/7"
    REQUEST_ID.reset(token)
    assert engine_id("cmpl-1-0-0") == "cmpl-1-0-0"
    assert http_id("cmpl-1-0-0") == ""


def test_a_child_process_logs_in_the_format_of_its_parent() -> None:
    child = "from ringkv.base import log_lines; import logging, warnings; log_lines.inherit(); "
    child += "logging.getLogger('ringkv.x').error('a'); logging.getLogger('uvicorn').warning('b'); warnings.warn('c')"
    code = "import subprocess, sys; from ringkv.base.log_lines import use_json; use_json(); "
    code += f"subprocess.run([sys.executable, '-c', {child!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["logger"]) for line in lines] == [
        ("error", "ringkv.x"),
        ("warning", "uvicorn"),
        ("warning", "py.warnings"),
    ]


def test_text_is_the_format_of_a_process_whose_parent_chose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringkv.base import log_lines

    monkeypatch.delenv(log_lines.INHERITED, raising=False)
    before = list(logging.root.handlers)
    log_lines.inherit()
    assert logging.root.handlers == before


@pytest.mark.parametrize("text_or_json", ["text", "json"])
def test_every_line_of_a_rank_names_it(text_or_json: str) -> None:
    """The process of a rank that cannot start, without torch."""
    code = (
        "import sys; from socket import socketpair; from types import SimpleNamespace as Names\n"
        "from ringkv.base.ranks import Rank; from ringkv.ranks import follower\n"
        "sys.modules['ringkv.ranks.part'] = Names(build_part=lambda *_: 1 / 0)\n"
        "follower.main(socketpair()[0], Names(rank=Rank(3, 4), exchange='network'), 1.0)"
    )
    environment = {**os.environ, INHERITED: text_or_json}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (0, True)
    lines = done.stderr.splitlines()
    assert all(json.loads(one)["rank"] == 3 if text_or_json == "json" else one.startswith("rank 3: ") for one in lines)
