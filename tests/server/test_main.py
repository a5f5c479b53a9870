"""A server process, its engine process, and signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import httpx
import psutil
import pytest
from toy import config

from ringkv.base.errors import RingKVError
from ringkv.server.main import RunOptions, WantedModel, run

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from toy import config
from ringkv.server.main import RunOptions, WantedModel, run
from ringkv.worker.supervisor import RestartPolicy

def show(line): print(line, flush=True)

if __name__ == "__main__":
    try:
        models = [WantedModel(config(model_dir=Path(sys.argv[1])), (name,)) for name in sys.argv[5:]]
        options = RunOptions(builder=sys.argv[2], drain_seconds=float(sys.argv[3]),
            restart=RestartPolicy(first=float(sys.argv[4]), failures=2))
        run(models, port=0, on_status=show, on_progress=lambda done, total, text: show(f"{text} {done}/{total}"),
            options=options)
    except KeyboardInterrupt:
        sys.exit(130)
    show("torch is loaded" if "torch" in sys.modules else "ended")
"""


@contextmanager
def program(
    tmp_path: Path,
    model_dir: Path,
    builder: str,
    drain_seconds: float = 30,
    restart_after: float = 0.1,
    names: Sequence[str] = ("echo",),
) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join(str(ROOT / folder) for folder in ("", "src", "tests"))
    settings = [str(model_dir), f"tests.server.echo:{builder}", str(drain_seconds), str(restart_after), *names]
    process = subprocess.Popen(
        [sys.executable, str(script), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
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
        out, err = process.communicate(timeout=60)
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
    assert '"content":"user:What is the capital of France?"' in got.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_engine_starts_ends_both(tmp_path: Path, model_dir: Path, number: signal.Signals) -> None:
    with program(tmp_path, model_dir, "build_slowly") as process:
        lines_until(process, "echo 0/1")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (err, process.returncode) == ("", 128 + number)
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.slow  # starts servers
def test_watchers_do_not_hold_up_the_end(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build") as process:
        url = address(process)
        with httpx.stream("GET", f"{url}/ringkv/live", timeout=30) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: hello"
            assert "event: tick" in lines
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            assert time.monotonic() - began < 4  # not the 5 s that answers get to be read
    assert (out, err, process.returncode) == ("stopped\nended\n", "", 0)


@pytest.mark.slow  # starts servers
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
    assert "answers running: 1, 30 s to finish" in out


def address(process: subprocess.Popen[str]) -> str:
    """Return where a program serves, once it does."""
    found = re.search(r"http://\S+:\d+", lines_until(process, "try: "))
    assert found is not None
    return found[0]


def engines(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the engine processes of a program, without the interpreter's resource tracker."""
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


def test_an_engine_that_dies_ends_its_streams_with_an_error_and_is_started_again(
    tmp_path: Path, model_dir: Path
) -> None:
    with (
        program(tmp_path, model_dir, "build_sluggish", restart_after=0.5) as process,
        httpx.Client(base_url=address(process), timeout=30) as http,
    ):
        body = {"prompt": "abc", "max_tokens": 500, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            (engine,) = engines(process)
            engine.kill()
            *_, error, done = (line for line in lines if line)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_died"
        assert done == "data: [DONE]"
        assert [http.get(path).status_code for path in ("/health", "/ready")] == [200, 503]
        refused = http.post("/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_restarting")
        assert int(refused.headers["retry-after"]) >= 1
        assert 'ringkv_engine_up{model="echo"} 0.0' in http.get("/metrics").text
        assert within(60, lambda: http.get("/ready").status_code == 200)
        got = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5}).json()
        assert got["choices"][0]["text"] == "abcab"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(r"killed.*\n.*started again in 0.5 s\n.*ready again", log)


@pytest.mark.slow  # starts servers
def test_an_engine_that_cannot_be_started_again_ends_the_server(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build_once") as process:
        address(process)
        engines(process)[0].kill()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert log.count("(attempt") == 2
    assert "BadWeights: " in log


@pytest.mark.slow  # starts servers
def test_a_signal_while_there_is_no_engine_is_not_reported_as_success(tmp_path: Path, model_dir: Path) -> None:
    with program(tmp_path, model_dir, "build", restart_after=60) as process:
        url = address(process)
        engines(process)[0].kill()
        assert within(60, lambda: httpx.get(f"{url}/ready").status_code == 503)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=5)
    assert process.returncode == 1
    assert "EngineDied: " in log


def streamed(http: httpx.Client, count: int, into: "Queue[str]") -> str:
    """Complete `count` tokens, noting in `into` when the first has come, and return the finish reason."""
    body = {"prompt": "abc", "max_tokens": count, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        events = [line for line in _noting(answer.iter_lines(), into) if line.startswith("data: {")]
    return str(json.loads(events[-1].removeprefix("data: "))["choices"][0]["finish_reason"])


def _noting(lines: Iterator[str], into: "Queue[str]") -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            into.put(line)
        yield line


@pytest.mark.slow  # starts servers
def test_a_signal_under_load_loses_no_accepted_request(tmp_path: Path, model_dir: Path) -> None:
    with (
        program(tmp_path, model_dir, "build_sluggish") as process,
        httpx.Client(base_url=address(process), timeout=30) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        came = Queue[str]()
        answers = [pool.submit(streamed, http, 60, came) for _ in range(8)]  # four run for 3 s, four wait
        came.get(timeout=10)
        assert within(60, lambda: 'ringkv_requests_waiting{model="echo"} 4.0' in http.get("/metrics").text)
        for one in (psutil.Process(process.pid), *engines(process)):  # as systemd does
            one.send_signal(signal.SIGTERM)
        assert within(60, lambda: http.get("/ready").status_code == 503)
        late = http.post("/v1/completions", json={"prompt": "late"})
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert 1 <= int(late.headers["retry-after"]) <= 30
        assert [answer.result(timeout=20) for answer in answers] == ["length"] * 8
        assert process.wait(timeout=5) == 0


@pytest.mark.slow  # starts servers
def test_at_the_deadline_running_answers_end_with_abort(tmp_path: Path, model_dir: Path) -> None:
    with (
        program(tmp_path, model_dir, "build_sluggish", drain_seconds=0.3) as process,
        httpx.Client(base_url=address(process), timeout=30) as http,
        ThreadPoolExecutor(6) as pool,
    ):
        came = Queue[str]()
        answers = [pool.submit(streamed, http, 500, came) for _ in range(4)]
        for _ in range(4):
            came.get(timeout=10)
        process.send_signal(signal.SIGTERM)
        assert [answer.result(timeout=10) for answer in answers] == ["abort"] * 4
        assert process.wait(timeout=5) == 0


@pytest.mark.slow  # starts servers
def test_the_engines_of_several_models_are_started_ended_and_started_again_one_by_one(
    tmp_path: Path, model_dir: Path
) -> None:
    with (
        program(tmp_path, model_dir, "build", names=["a", "b"]) as process,
        httpx.Client(base_url=address(process), timeout=30) as http,
    ):

        def ask(model: str) -> int:
            return http.post("/v1/completions", json={"model": model, "prompt": "abc", "max_tokens": 5}).status_code

        first, second = sorted(engines(process), key=lambda one: one.create_time())
        second.kill()
        assert within(60, lambda: "engine of b " in http.get("/ready").text)
        assert (ask("a"), ask("b")) == (200, 503)
        assert within(60, lambda: http.get("/ready").status_code == 200)
        assert (ask("a"), ask("b"), first.is_running()) == (200, 200, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert not first.is_running()


NO_BUILDER = RunOptions(builder="nothing:to_import")


def test_a_taken_port_is_reported_before_the_engine_starts(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RingKVError, match=f"port {port}.*choose another"):
            run([WantedModel(config(model_dir=model_dir), ("echo",))], port=port, options=NO_BUILDER)


def test_an_address_of_another_host_is_reported(model_dir: Path) -> None:
    with pytest.raises(RingKVError, match=r"192\.0\.2\.1"):
        run([WantedModel(config(model_dir=model_dir), ("echo",))], host="192.0.2.1", port=0, options=NO_BUILDER)
