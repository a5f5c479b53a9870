"""GET /health, /ready, /version, /metrics and /v1/models."""

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from ringkv.base.errors import EngineRestarting, PrefillUnavailable
from ringkv.base.version import VERSION
from ringkv.server.api.documents import Document, errors
from ringkv.server.protocol.drain import Drain
from ringkv.server.run.metrics import Metrics
from ringkv.server.run.requests import OPENAI_DEFAULTS
from ringkv.server.run.serving import Models, Serving

TEXT = {"text/plain": {"schema": {"type": "string"}}}


class Card(Document):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    kv_policy: str
    kv_budget: int
    sampling: dict[str, float]


class Cards(Document):
    object: Literal["list"]
    data: list[Card]


class Health(Document):
    status: Literal["ok"]


class Version(Document):
    version: str


def info_router(models: Models, server_metrics: Metrics, drain: Drain) -> APIRouter:
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Check that the server lives")
    async def health() -> Health:
        """Liveness: this process serves, even while its engine is being started again."""
        return Health(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", summary="Check that requests are taken", responses=errors(503))
    async def ready() -> Health:
        """Readiness: a request that is sent now is taken, whichever model it names."""
        drain.check()
        for serving in models:
            name, engine = serving.names[0], serving.engine
            if not engine.alive:
                raise EngineRestarting(f"the engine of {name} has ended and is being started again", 1)
            if engine.stats().prefill_workers == 0:
                raise PrefillUnavailable(f"no prefill worker of {name} is connected; the log says why")
        return Health(status="ok")

    @router.get("/version", summary="Name the server's version")
    async def version() -> Version:
        return Version(version=VERSION)

    @router.get(
        "/metrics",
        summary="Report metrics to Prometheus",
        responses={200: {"content": TEXT, "description": "Prometheus text"}},
        response_class=Response,
    )
    async def metrics() -> Response:
        return Response(server_metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @router.get("/v1/models/", include_in_schema=False)
    @router.get("/v1/models", summary="List the models")
    async def cards() -> Cards:
        return Cards(object="list", data=[_card(serving, name) for serving in models for name in serving.names])

    @router.get("/v1/models/{name:path}", summary="Describe a model", responses=errors(404))
    async def card(name: str) -> Card:
        return _card(models.find(name), name)

    return router


def _card(serving: Serving, name: str) -> Card:
    kv, limits = serving.engine.default_kv, serving.engine.limits
    return Card(
        id=name,
        object="model",
        created=serving.created,
        owned_by="ringkv",
        root=serving.names[0],
        max_model_len=limits.longest_prompt + 1,
        kv_policy=kv.policy,
        kv_budget=kv.budget or limits.capacity,
        sampling={**OPENAI_DEFAULTS, **serving.sampling},
    )
