"""A server process, its engine process, and signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from toy import config

from ringkv.base.errors import RingKVError
from ringkv.server.main import run

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from toy import config
from ringkv.server.main import run

def show(line): print(line, flush=True)

if __name__ == "__main__":
    try:
        run(config(model_dir=Path(sys.argv[1])), ["echo"], port=0, on_status=show, builder=sys.argv[2],
            on_progress=lambda done, total, text: show(f"{text} {done}/{total}"))
    except KeyboardInterrupt:
        sys.exit(130)
    show("torch is loaded" if "torch" in sys.modules else "ended")
"""


@contextmanager
def program(tmp_path: Path, model_dir: Path, builder: str) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join(str(ROOT / folder) for folder in ("", "src", "tests"))
    command = [sys.executable, str(script), str(model_dir), f"tests.server.echo:{builder}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if word in line:
            return text
    raise AssertionError(f"it ended without {word!r}: {text}{process.stderr and process.stderr.read()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_leaves_nothing_behind(
    tmp_path: Path, model_dir: Path, number: signal.Signals
) -> None:
    with program(tmp_path, model_dir, "build") as process:
        text = lines_until(process, "try: ")
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", text)
        assert found is not None
        assert text.startswith("echo 1/1\n")
        assert "123 MB reserved" in text
        got = httpx.post(f"{found[0]}/completions", json={"prompt": "abc", "max_tokens": 5}, timeout=30).json()
        assert got["choices"][0]["text"] == "abcab"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("stopped\nended\n", "", 0)
    assert children
    assert not any(child.is_running() and child.name() == "ringkv-engine" for child in children)
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_the_line_to_try_works_as_it_is_printed(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build") as process:
        text = lines_until(process, "try: ")
        line = text[text.index("try: ") + 5 :].strip()
        got = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    if got.returncode == 127:
        pytest.skip("there is no curl")
    assert '"content":"user:Hello"' in got.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_engine_starts_ends_both(tmp_path: Path, model_dir: Path, number: signal.Signals) -> None:
    with program(tmp_path, model_dir, "build_slowly") as process:
        lines_until(process, "echo 0/1")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (err, process.returncode) == ("", 130)
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_second_signal_does_not_wait_for_running_answers(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build_sluggish") as process:
        found = re.search(r"http://\S+", lines_until(process, "try: "))
        assert found is not None
        body = {"prompt": "abc", "max_tokens": 500, "stream": True}
        with httpx.stream("POST", f"{found[0]}/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()  # kept in a variable, or the client would close the connection
            next(lines)
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=4)
    assert process.returncode == 0
    assert "answers running: 1, 5 s to finish" in out


def test_an_engine_that_dies_ends_its_streams_with_an_error(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build_sluggish") as process:
        found = re.search(r"http://\S+", lines_until(process, "try: "))
        assert found is not None
        body = {"prompt": "abc", "max_tokens": 500, "stream": True}
        with httpx.stream("POST", f"{found[0]}/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            *_, error, done = (line for line in lines if line)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_died"
        assert done == "data: [DONE]"
        assert httpx.get(found[0].removesuffix("/v1") + "/health").status_code == 503
        assert httpx.post(f"{found[0]}/completions", json=body).status_code == 503
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_taken_port_is_reported_before_the_engine_starts(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RingKVError, match=f"port {port}.*choose another"):
            run(config(model_dir=model_dir), ["echo"], port=port, builder="nothing:to_import")


def test_an_address_of_another_host_is_reported(model_dir: Path) -> None:
    with pytest.raises(RingKVError, match=r"192\.0\.2\.1"):
        run(config(model_dir=model_dir), ["echo"], host="192.0.2.1", port=0, builder="nothing:to_import")
