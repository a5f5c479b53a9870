"""make_app: the HTTP application over an engine, which may be in another process."""

import time
from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from ringkv.base.version import VERSION
from ringkv.server.admission import DEFAULT_LOAD, Admission, LoadOptions
from ringkv.server.channel import EngineChannel
from ringkv.server.chat import chat_router
from ringkv.server.completions import completions_router
from ringkv.server.docs_page import docs_router
from ringkv.server.documents import DESCRIPTION, document
from ringkv.server.drain import CountWork, Drain
from ringkv.server.engine_metrics import EngineGauges, EngineTimes, QueueGauges
from ringkv.server.errors import add_handlers
from ringkv.server.guard import OPEN_ACCESS, Access, Guard
from ringkv.server.info import info_router
from ringkv.server.metrics import Metrics
from ringkv.server.middleware import Observe
from ringkv.server.request_log import Log
from ringkv.server.responses import responses_router
from ringkv.server.serving import Serving
from ringkv.server.tokens import tokens_router
from ringkv.server.tracing import TEXT_ONLY, Telemetry, Trace
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer


def make_app(
    engine: EngineChannel,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    names: Sequence[str],
    origins: Sequence[str] = (),
    log: Log | None = None,
    load: LoadOptions = DEFAULT_LOAD,
    drain: Drain | None = None,
    access: Access = OPEN_ACCESS,
    telemetry: Telemetry = TEXT_ONLY,
) -> FastAPI:
    """Serve one model under `names`: the first is its own name, the others are aliases. The caller closes the engine.

    origins: sites whose pages may send requests from a browser, "*" for all. log: receives one line per request.
    load: the queue's bounds and the longest time of a request.
    drain: counts running work, and refuses more once it has begun.
    access: who may send requests, and how many and how large.
    telemetry: how requests are logged and traced.
    """
    drain = drain or Drain()
    tokenizer.token_lower_bound("")  # read the vocabulary now rather than in the first request
    guides = Guides(lambda: tokenizer, engine.limits.vocab)
    metrics = Metrics()
    admission = Admission(load.queue(engine.limits), engine.limits.slots, lambda: engine.metrics().service, metrics)
    for collector in (EngineGauges(engine), EngineTimes(engine), QueueGauges(admission)):
        metrics.registry.register(collector)
    created = int(time.time())
    serving = Serving(
        engine, tokenizer, template, tuple(names), metrics, created, guides, admission, drain, load.request_timeout
    )
    app = FastAPI(title="ringkv", version=VERSION, description=DESCRIPTION, docs_url=None, redoc_url=None)
    for router in (info_router, completions_router, chat_router, responses_router, tokens_router):
        app.include_router(router(serving))
    app.include_router(docs_router(app))
    add_handlers(app)
    document(app)
    app.add_middleware(Guard, access=access)
    app.add_middleware(CountWork, drain=drain)
    app.add_middleware(Observe, metrics=serving.metrics, log=log, describe=telemetry.describe)
    if telemetry.tracer:
        app.add_middleware(Trace, tracer=telemetry.tracer, model=names[0])
    if origins:  # added last, so that error responses have the CORS headers too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app
