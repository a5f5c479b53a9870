import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.data import REPOSITORY
from bench.traffic.server import HOST, Server, ServerFailed, free_port

SERVE = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_waited_for_stopped_and_ended_with_its_children(tmp_path: Path) -> None:
    port = free_port()
    server = Server([sys.executable, "-c", SERVE, f"{port}"], {}, port, tmp_path / "log")
    try:
        assert 0 < server.wait("/health", 30) < 30
        assert server.get("/health") == b"ok"
        assert server.get("/other") is None
        first = psutil.Process(server._process.pid)
        processes = [first, *first.children(recursive=True)]
        assert len(processes) == 2
        server.pause()
        assert _becomes(processes, psutil.STATUS_STOPPED)
        server.resume()
        assert server.get("/health") == b"ok"
    finally:
        server.kill()
    assert not server.alive
    assert _becomes(processes, psutil.STATUS_ZOMBIE)
    assert server.url == f"http://{HOST}:{port}"


def _becomes(processes: list[psutil.Process], status: str) -> bool:
    """Whether all processes get this status soon, or are gone."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if all(not one.is_running() or one.status() == status for one in processes):
            return True
        time.sleep(0.01)
    return False


PARENT = """
import os, sys
from pathlib import Path
from bench.traffic.server import Server
server = Server([sys.executable, "-c", "import time; time.sleep(60)"], {}, 9, Path(sys.argv[1]))
server.pause()  # a stopped process must end too
print(server._process.pid, flush=True)
os._exit(1)
"""


def test_a_server_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, f"{tmp_path / 'log'}"]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY).stdout)
    assert not psutil.pid_exists(pid) or _becomes([psutil.Process(pid)], psutil.STATUS_ZOMBIE)


def test_a_server_that_ends_is_named_with_its_log(tmp_path: Path) -> None:
    server = Server([sys.executable, "-c", "raise SystemExit(3)"], os.environ, free_port(), tmp_path / "log")
    with pytest.raises(ServerFailed, match=r"status 3; .*log"):
        server.wait("/health", 30)
    server.kill()
