"""The web page's files."""

import asyncio
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from ringkv.server.api.web_files import web_router
from ringkv.server.welcome import welcome
from tests.server.conftest import Served
from tests.server.test_welcome import toy

FILES = {"app-1f.js": b"export {}", "app-2e.css": b"body{}", "text-3d.woff2": b"wOF2", "logo-4c.svg": b"<svg/>"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    (folder / "assets" / "more").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    for name, contents in FILES.items():
        (folder / "assets" / name).write_bytes(contents)
    (folder / "assets" / "notes.py").write_text("secret = 1")
    (tmp_path / "secret.js").write_text("secret")
    return folder


def get(folder: Path, path: str, method: str = "GET") -> httpx.Response:
    app = FastAPI(docs_url=None)
    app.include_router(web_router(folder))

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.request(method, path)

    return asyncio.run(once())


def test_both_views_are_the_same_page_which_is_checked_at_each_visit(folder: Path) -> None:
    home, operator = get(folder, "/"), get(folder, "/dashboard")
    assert home.content == operator.content == (folder / "index.html").read_bytes()
    assert home.headers["content-type"] == "text/html; charset=utf-8"
    assert home.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", FILES)
def test_an_asset_is_sent_as_it_is_and_kept_for_ever(folder: Path, name: str) -> None:
    got = get(folder, f"/assets/{name}")
    assert got.content == FILES[name]
    assert "immutable" in got.headers["cache-control"]
    kind = {"js": "javascript", "css": "css", "woff2": "font", "svg": "svg"}[name.rpartition(".")[2]]
    assert kind in got.headers["content-type"]
    assert got.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/assets/none.js", "/assets/", "/assets/notes.py", "/assets/more", "/assets/../index.html"]
    + [f"/assets/{quote(name, safe='')}" for name in ("../index.html", "../../secret.js", "/etc/passwd", "\0.js")],
)
def test_what_is_not_an_asset_is_404(folder: Path, path: str) -> None:
    assert get(folder, path).status_code == 404


@pytest.mark.parametrize("path", ["/", "/dashboard", "/assets/app-1f.js"])
def test_a_head_request_gets_the_headers_alone(folder: Path, path: str) -> None:
    got, full = get(folder, path, "HEAD"), get(folder, path)
    assert (got.status_code, got.content) == (200, b"")
    assert got.headers == full.headers


def test_the_page_may_load_only_what_this_server_has(folder: Path) -> None:
    for path in ("/", "/assets/app-1f.js"):
        policy = get(folder, path).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert {rules[f"{kind}-src"] for kind in ("script", "style", "connect", "font")} == {"'self'"}
        assert rules["img-src"] == "'self' data:"
        assert "unsafe" not in policy


def test_without_the_built_files_the_page_says_so_with_the_remedy(tmp_path: Path) -> None:
    got = get(tmp_path / "none", "/")
    assert got.status_code == 404
    assert got.headers["content-type"].startswith("text/plain")
    assert "`make web`" in got.text
    assert get(tmp_path / "none", "/assets/app.js").status_code == 404


def test_a_server_has_the_page_and_its_schema_has_the_api_only(served: Served) -> None:
    assert served.http.get("/").status_code in (200, 404)  # 404 before the page is built
    assert "content-security-policy" in served.http.get("/dashboard").headers
    assert not {"/", "/dashboard", "/assets/{name}"} & set(served.http.get("/openapi.json").json()["paths"])


def test_the_welcome_names_the_pages_address() -> None:
    text = welcome([toy("toy")], ("::1", 8000), scheme="https")
    assert re.findall(r"page: open (\S+) in a browser", text) == ["https://[::1]:8000/"]
