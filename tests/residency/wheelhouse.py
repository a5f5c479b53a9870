"""A catalogue model of small wheels, and a local server of them that can be made to fail."""

import hashlib
import io
import random
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from ringkv.residency.catalogue import CatalogueModel, WheelPart

VERSION = "1.0"


def wheel(package: str, content: bytes) -> bytes:
    """Return a wheel that pip accepts, with `content` as its part."""
    module, buffer = package.replace("-", "_"), io.BytesIO()
    info = f"{module}-{VERSION}.dist-info"
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{module}/part.bin", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


class Wheelhouse:
    """content: the model. wheels: files by name. The other fields are the server's behaviour and its requests."""

    def __init__(self, parts: int = 3, part_bytes: int = 700_000) -> None:
        generator = random.Random(3)
        pieces = [generator.randbytes(part_bytes) for _ in range(parts)]
        packages = [f"tiny-part{number}" for number in range(1, parts + 1)]
        self.content = b"".join(pieces)
        self.wheels = {self.file(name): wheel(name, piece) for name, piece in zip(packages, pieces, strict=True)}
        rows = zip(packages, pieces, self.wheels.values(), strict=True)
        self.model = CatalogueModel(
            name="tiny",
            title="Tiny",
            licence="Apache-2.0",
            context=256,
            file="tiny.gguf",
            bytes=len(self.content),
            sha256=hashlib.sha256(self.content).hexdigest(),
            converted_bytes=0,
            parts=tuple(
                WheelPart(name, VERSION, f"{name.replace('-', '_')}/part.bin", len(piece), len(file), _digest(file))
                for name, piece, file in rows
            ),
        )
        self.address = ""
        self.requests: list[tuple[str, int]] = []  # file, first byte
        self.honours_ranges = True
        self.bytes_before_hanging_up: list[int] = []  # for one request each
        self.status = 0  # answer with this instead

    @staticmethod
    def file(package: str) -> str:
        return f"{package.replace('-', '_')}-{VERSION}-py3-none-any.whl"

    def addresses(self, requirements: list[str]) -> dict[str, str]:
        """Return what pip would."""
        return {wanted: f"{self.address}/{self.file(wanted.partition('==')[0])}" for wanted in requirements}

    def write(self, folder: Path) -> None:
        for name, data in self.wheels.items():
            (folder / name).write_bytes(data)

    @contextmanager
    def serving(self) -> Iterator[None]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _handler(house: Wheelhouse) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            house.requests.append((name, start))
            if house.status:
                self.send_error(house.status)
                return
            start = start if house.honours_ranges else 0
            data = house.wheels[name][start:]
            self.send_response(206 if house.honours_ranges else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            hang_up = house.bytes_before_hanging_up.pop(0) if house.bytes_before_hanging_up else len(data)
            self.wfile.write(data[:hang_up])

        def log_message(self, *_: object) -> None:
            pass

    return Handler
