import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import SMALL, Cli


@contextmanager
def serving(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    code = "from ringkv.cli.main import main; main()"
    program = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", *SMALL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def test_a_served_model_answers_under_its_names_and_ctrl_c_ends_it(model_dir: Path) -> None:
    with serving("--model", str(model_dir), "--served-model-name", "one", "--served-model-name", "two") as program:
        assert program.stdout is not None
        found = re.fullmatch(r"one is served at (http://127.0.0.1:\d+/v1)\n", program.stdout.readline())
        assert found is not None
        with urlopen(f"{found[1]}/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["one", "two"]
        body = json.dumps({"model": "two", "prompt": "abc", "max_tokens": 3}).encode()
        with urlopen(Request(f"{found[1]}/completions", body, {"Content-Type": "application/json"})) as response:
            assert json.load(response)["usage"]["completion_tokens"] <= 3
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=30)
    assert program.returncode == 0
    assert "Traceback" not in err


@pytest.mark.slow  # starts servers
def test_a_server_goes_on_and_stops_with_0_if_nobody_reads_its_stdout(model_dir: Path) -> None:
    with serving("--model", str(model_dir)) as program:
        assert program.stdout is not None
        url = program.stdout.readline().split()[-1]
        program.stdout.close()
        with urlopen(f"{url}/models") as response:
            assert response.status == 200
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=20) == 0


@pytest.mark.slow  # starts servers
@pytest.mark.parametrize(("flags", "lines"), [((), ["GET /health 200"]), (("--no-request-log",), [])])
def test_requests_are_logged_on_stderr_unless_that_is_switched_off(
    model_dir: Path, flags: tuple[str, ...], lines: list[str]
) -> None:
    with serving("--model", str(model_dir), *flags) as program:
        assert program.stdout is not None
        url = program.stdout.readline().split()[-1].removesuffix("/v1")
        urlopen(f"{url}/health").close()
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=30)
    assert [line.rsplit(" ", 2)[0] for line in err.splitlines() if line.startswith("GET")] == lines


def test_an_address_that_cannot_be_used_is_refused(cli: Cli, model_dir: Path) -> None:
    result = cli("serve", "--model", model_dir, *SMALL, "--host", "203.0.113.1")
    assert result.status == 1
    assert "203.0.113.1 port 8000" in result.last_line


def test_a_process_of_torchrun_whose_ranks_another_one_starts_ends_at_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in (given | {"MASTER_PORT": "29400"}).items():
        monkeypatch.setenv(name, value)
    result = cli("serve", "--model", "no-such-model")
    assert (result.status, result.out) == (0, "")
    assert "local rank 0 starts rank 3" in result.last_line


@pytest.mark.slow  # starts servers
def test_tls_and_keys_protect_a_served_model(model_dir: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    cert, key, keys = (tmp_path / name for name in ("cert.pem", "key.pem", "keys"))
    keys.write_text("alice:alice-0123456789\n")
    make = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *make.split(), "-keyout", str(key), "-out", str(cert)], capture_output=True, check=True)
    trusted = ssl.create_default_context(cafile=cert)
    flags = ("--tls-cert", cert, "--tls-key", key, "--api-keys", keys)
    with serving("--model", str(model_dir), *map(str, flags)) as program:
        assert program.stdout is not None
        url = program.stdout.readline().split()[-1]
        assert url.startswith("https://127.0.0.1:")
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{url}/models", context=trusted)
        assert refused.value.code == 401
        refused.value.close()
        with urlopen(url.removesuffix("/v1") + "/health", context=trusted) as response:
            assert response.status == 200
        asked = Request(f"{url}/models", headers={"Authorization": "Bearer alice-0123456789"})
        with urlopen(asked, context=trusted) as response:
            assert json.load(response)["object"] == "list"
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"{url}/models", headers={"Host": "evil.example"}), context=trusted)
        assert refused.value.code == 421
        refused.value.close()
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=30)
    assert "GET /v1/models 200" in err
    assert "key alice" in err
    assert "alice-0123456789" not in err


@pytest.mark.slow  # starts servers
def test_a_server_from_a_file_with_json_logs_writes_nothing_else(model_dir: Path, tmp_path: Path) -> None:
    (file := tmp_path / "it.toml").write_text(f'model = {json.dumps(str(model_dir))}\nlog-format = "json"\n')
    with serving("--config", str(file)) as program:
        assert program.stderr is not None
        lines = []
        while "is served at" not in (line := program.stderr.readline()):
            assert line, lines
            lines.append(json.loads(line))
        ready = json.loads(line)
        url = ready["event"].split()[-1]
        with urlopen(Request(f"{url}/models", headers={"x-request-id": "mine-7"})) as response:
            assert response.headers["x-request-id"] == "mine-7"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    lines += [json.loads(line) for line in err.splitlines()]
    (request,) = (line for line in lines if line["event"] == "request")
    assert (request["request_id"], request["path"], request["status"]) == ("mine-7", "/v1/models", 200)
    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert any(line.startswith("cache: ") for line in ready["detail"])
    assert (out, program.returncode) == ("", 0)


@pytest.mark.parametrize("command", [("serve",), ("generate", "hello"), ("bench", "--prompt-tokens", "64")])
def test_an_engine_that_does_not_fit_on_its_gpu_is_refused_with_the_numbers(
    command: tuple[str, ...], model_dir: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.15 GB are the reserve; the tiny model adds less than 100 MB."""
    for module in (
        "engine.device_memory.free_bytes_elsewhere",
        "engine.device_memory.free_bytes",
        "llm.llm.free_bytes",
    ):
        monkeypatch.setattr(f"ringkv.{module}", {"cuda:0": 10**9}.get)
    done = cli(*command, "--model", model_dir, "--device", "cuda:0", *SMALL)
    assert done.status == 1
    assert re.search(r"of reserve need 2\.[12]\d? GB on cuda:0, and 1 GB are available; not even one", done.last_line)
