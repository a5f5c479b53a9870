"""What the server tells of itself: /health, /version, /metrics, /v1/models."""

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from ringkv.base.errors import EngineDied
from ringkv.base.version import VERSION
from ringkv.server.serving import Serving


def info_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        if not serving.engine.alive:
            raise EngineDied("the engine process has ended; restart the server")
        return {"status": "ok"}

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(serving.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(serving, name) for name in serving.names]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _card(serving, serving.model(name))

    return router


def _card(serving: Serving, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "ringkv",
        "root": serving.names[0],
        "max_model_len": serving.engine.limits.context,
    }
