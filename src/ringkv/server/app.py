"""make_app: the HTTP application over engines, which may be in other processes."""

import time
from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from ringkv.base.version import VERSION
from ringkv.server.api.chat import chat_router
from ringkv.server.api.completions import completions_router
from ringkv.server.api.docs_page import docs_router
from ringkv.server.api.documents import DESCRIPTION, document
from ringkv.server.api.info import info_router
from ringkv.server.api.page_data import page_data_router
from ringkv.server.api.responses import responses_router
from ringkv.server.api.tokens import tokens_router
from ringkv.server.api.web_files import web_router
from ringkv.server.options import DEFAULT_LOAD, LoadOptions
from ringkv.server.protocol.drain import CountWork, Drain
from ringkv.server.protocol.errors import HANDLERS
from ringkv.server.protocol.guard import OPEN_ACCESS, Access, Guard
from ringkv.server.run.admission import Admission
from ringkv.server.run.metrics import Metrics
from ringkv.server.run.serving import LoadedModel, Models, Serving
from ringkv.server.watch.engine_metrics import EngineCollector
from ringkv.server.watch.history import Histories
from ringkv.server.watch.live import server_clock
from ringkv.server.watch.log import Log
from ringkv.server.watch.observe import Observe
from ringkv.server.watch.tracing import TEXT_ONLY, Telemetry, Trace
from ringkv.text.guide_processes import GuideProcesses


def make_app(
    loaded: Sequence[LoadedModel],
    origins: Sequence[str] = (),
    log: Log | None = None,
    load: LoadOptions = DEFAULT_LOAD,
    drain: Drain | None = None,
    access: Access = OPEN_ACCESS,
    telemetry: Telemetry = TEXT_ONLY,
) -> FastAPI:
    """Serve models, each under its names. The caller closes the engines.

    origins: sites whose pages may send requests from a browser, "*" for all. log: receives one line per request.
    load: the bounds of each model's queue, and the longest time of a request.
    drain: counts running work, and refuses more once it has begun.
    access: who may send requests, and how many and how large.
    telemetry: how requests are logged and traced.
    """
    drain = drain or Drain()
    metrics = Metrics()
    models = Models([_serving(model, load, metrics) for model in loaded])
    drain.at_end += [serving.guides.close for serving in models]
    metrics.registry.register(EngineCollector(models))
    histories = Histories(models, server_clock())
    app = FastAPI(
        title="ringkv",
        version=VERSION,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        exception_handlers=HANDLERS,
        lifespan=histories.running,
    )
    app.include_router(info_router(models, metrics, drain))
    for router in (completions_router, chat_router, responses_router, tokens_router):
        app.include_router(router(models))
    app.include_router(page_data_router(models, histories, drain))
    app.include_router(docs_router(app))
    app.include_router(web_router())
    document(app)
    app.add_middleware(Guard, access=access)
    app.add_middleware(CountWork, drain=drain)
    app.add_middleware(Observe, metrics=metrics, log=log, describe=telemetry.describe)
    if telemetry.tracer:
        app.add_middleware(Trace, tracer=telemetry.tracer)
    if origins:  # added last, so that error responses have the CORS headers too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app


def _serving(model: LoadedModel, load: LoadOptions, metrics: Metrics) -> Serving:
    engine, limits = model.engine, model.engine.limits
    model_metrics = metrics.of(model.names[0])
    return Serving(
        **vars(model),
        metrics=model_metrics,
        created=int(time.time()),
        guides=GuideProcesses(lambda: model.tokenizer, limits.vocab),
        admission=Admission(load.queue(limits), limits.slots, lambda: engine.metrics().service, model_metrics),
        timeout=load.request_timeout,
    )
