import logging
import subprocess
import sys

import pytest

from ringkv.base.errors import BudgetTooSmall, DoesNotFit, InvalidRequest, RingKVError, UnknownModel
from ringkv.cli.failures import guarded, show_warnings


def end(error: BaseException) -> int:
    def fail() -> None:
        raise error

    return guarded(fail)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("no"), 2),
        (BudgetTooSmall("no"), 2),
        (UnknownModel("no"), 2),
        (DoesNotFit("no"), 1),
        (RingKVError("no"), 1),
        (ZeroDivisionError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_invalid_requests_exit_with_2_and_failures_with_1(error: BaseException, status: int) -> None:
    assert end(error) == status


def test_an_unforeseen_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGKV_DEBUG", raising=False)
    end(ZeroDivisionError("a\nb"))
    assert capsys.readouterr().err == "ringkv: unexpected ZeroDivisionError: a (RINGKV_DEBUG=1 shows where)\n"


def test_a_traceback_is_shown_if_ringkv_debug_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGKV_DEBUG", "1")
    end(ZeroDivisionError("a"))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidRequest("kv_budget is 0; lower it", "kv_budget"), "--kv-budget is 0; lower it"),
        (InvalidRequest("prompt_tokens is 9; lower kv_sinks", None), "--max-prompt is 9; lower --kv-sinks"),
        (InvalidRequest("slots is 0", "slots"), "--slots is 0"),
        (InvalidRequest('5 slots fit, or take weights="int4"'), "5 slots fit, or take --weights int4"),
        (InvalidRequest('the template has class="wide"'), 'the template has class="wide"'),
        (InvalidRequest("4 slots is not few", "slots"), "4 slots is not few"),
        (InvalidRequest("some_file has no dtype", "dtype"), "some_file has no dtype"),
        (InvalidRequest('prompt 1 has "max_tokens" 0', "prompts"), 'prompt 1 has "max_tokens" 0'),
    ],
)
def test_option_names_become_flags(error: InvalidRequest, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    end(error)
    assert capsys.readouterr().err == f"ringkv: {message}\n"


def test_a_warning_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show_warnings()
    try:
        raise ValueError("inside")
    except ValueError as error:
        logging.getLogger("ringkv.engine").warning("running without graphs", exc_info=error)
    logging.getLogger("ringkv").handlers.clear()
    assert capsys.readouterr().err == "ringkv: running without graphs\n"


def test_a_closed_pipe_is_not_an_error() -> None:
    code = "from ringkv.cli.main import main; main()"
    command = f"{sys.executable} -c '{code}' models --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
