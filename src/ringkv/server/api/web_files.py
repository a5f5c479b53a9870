"""GET / and /dashboard: the web page, one application with two views. GET /assets/NAME: its scripts, styles and fonts.

The files are built from `web/` and shipped in the package. They hold no secret, so they need no API key; the data that
the page reads does. The page loads nothing from elsewhere and runs no inline script: its Content-Security-Policy
forbids both.
"""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

WEB = Path(__file__).parents[1] / "web"
TYPES = {  # a suffix that is not here is not served
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
FOR_EVER = HEADERS | {"cache-control": "public, max-age=31536000, immutable"}  # a name has a hash of the contents
CHECKED = HEADERS | {"cache-control": "no-cache"}
METHODS = ["GET", "HEAD"]
NOT_BUILT = (
    "The page is not built. Run `make web` in the repository, or install the ringkv package, which contains it. "
    "The API is under /v1, and /docs lists it.\n"
)


def web_router(folder: Path = WEB) -> APIRouter:
    """Serve the files of a folder, which are read once: a name in a request is never a path."""
    router = APIRouter(include_in_schema=False)
    index_file = folder / "index.html"
    page: Response = PlainTextResponse(NOT_BUILT, 404, CHECKED)
    if index_file.is_file():
        page = Response(index_file.read_bytes(), headers=CHECKED, media_type=TYPES[index_file.suffix])
    files = sorted((folder / "assets").glob("*"))
    assets = {
        file.name: Response(file.read_bytes(), headers=FOR_EVER, media_type=TYPES[file.suffix])
        for file in files
        if file.is_file() and file.suffix in TYPES
    }

    @router.api_route("/dashboard", methods=METHODS)
    @router.api_route("/", methods=METHODS)
    async def index() -> Response:
        return page

    @router.api_route("/assets/{name}", methods=METHODS)
    async def asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(404)
        return assets[name]

    return router
