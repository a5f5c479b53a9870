"""GET /docs: the API as one HTML page, made here from the schema of /openapi.json.

It has no script and loads nothing, so it works without a network, and its Content-Security-Policy forbids both.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse

Schema = Mapping[str, Any]

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}
METHODS = ("get", "post")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-top:1px solid #8884;padding:.3rem .6rem;text-align:left;"
    "vertical-align:top}code{font-family:ui-monospace,monospace}summary{cursor:pointer}details{margin:.7rem 0}"
    ":root{color-scheme:light dark}"
    "@media(max-width:48rem){body{overflow-wrap:anywhere}table,tbody,tr,td{display:block}th{display:none}"
    "td{border:0;padding:0 0 0 .6rem}td:first-child{border-top:1px solid #8884;padding:.4rem 0 0}}"
)


def docs_router(app: FastAPI) -> APIRouter:
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers=HEADERS)

    return router


def page(api: Schema) -> str:
    """Return the page for an OpenAPI document."""
    info = api["info"]
    title = escape(f"{info['title']} {info['version']}")
    operations = "".join(
        _operation(api, f"{method.upper()} {path}", methods[method])
        for path, methods in api["paths"].items()
        for method in METHODS
        if method in methods
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
        f'<p>For programs: <a href="/openapi.json">/openapi.json</a></p>{operations}</body></html>'
    )


def _operation(api: Schema, name: str, operation: Schema) -> str:
    title, told = operation.get("summary", ""), operation.get("description", "")
    statuses = ", ".join(operation.get("responses", ()))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return (
        f"<details><summary>{escape(title)} <code>{escape(name)}</code></summary><p>{escape(told)}</p>"
        f"{_fields(api, body)}"
        f"<p>Statuses: {escape(statuses)}</p></details>"
    )


def _fields(api: Schema, schema: Schema) -> str:
    """Return a table of a body's fields; "" for an operation without a body. A reference is into the components."""
    name = schema.get("$ref", "").rpartition("/")[2]
    body = api["components"]["schemas"][name] if name else schema
    required = body.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' * (name in required)}</td>"
        f"<td>{escape(_type(field))}</td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in body.get("properties", {}).items()
    )
    return f"<table><tr><th>field</th><th>type</th><th></th></tr>{rows}</table>" if rows else ""


def _type(field: Schema) -> str:
    """Return a field's type in a few words; null is left out, since it counts as absent."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    types = [_type(choice) for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    if types:
        return " or ".join(dict.fromkeys(types))
    if "enum" in field or "const" in field:
        return " or ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))
