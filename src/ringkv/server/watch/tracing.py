"""OpenTelemetry traces: one span per request, which continues the trace of its `traceparent` header.

The packages are an extra, `ringkv[otel]`. Spans have no text of prompts or answers. They are sent by a thread of the
SDK, which drops spans if the collector does not keep up; requests never wait for it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from ringkv.base.errors import RingKVError
from ringkv.base.version import VERSION
from ringkv.server.protocol.errors import NOT_ANSWERED
from ringkv.server.protocol.keys import caller_of
from ringkv.server.protocol.scope import ARRIVED, MODEL, REQUEST_ID, STATUS, TRACE_ID, USAGE_COUNTER
from ringkv.server.run.usage import UsageCounter
from ringkv.server.watch.log import FAILED, Describe, described
from ringkv.server.watch.observe import endpoint_of

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
DISABLED = "OTEL_SDK_DISABLED"
PATH = "/v1/traces"  # of a collector, below its endpoint
NOT_INSTALLED = "traces need packages that are not installed; run: pip install 'ringkv[otel]'"
PROBES = frozenset({"/health", "/ready", "/metrics"})  # these have no span
FLUSH_MS = 3000  # at the end


@dataclass(frozen=True)
class Telemetry:
    """What a server tells of each request. describe: makes its log line. tracer: makes its span; None makes none."""

    describe: Describe = described
    tracer: "Tracer | None" = None


TEXT_ONLY = Telemetry()


def is_installed() -> bool:
    """Whether the packages of the extra are installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a parent
        return False


def wanted_endpoint(flag: str | None, environment: Mapping[str, str]) -> str | None:
    """Return where to send spans: the flag's endpoint, or the environment's; None for no traces."""
    if environment.get(DISABLED, "").lower() == "true":
        return None
    return flag or environment.get(ENDPOINT) or None


@contextmanager
def tracer_of(endpoint: str | None) -> Iterator["Tracer | None"]:
    """Give a tracer that sends its spans to a collector over OTLP; send the last spans when the block ends.

    Raises RingKVError if the packages are not installed.
    """
    if endpoint is None:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RingKVError(NOT_INSTALLED) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "ringkv")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: VERSION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + PATH)))
    try:
        yield provider.get_tracer("ringkv", VERSION)
    finally:
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


class Trace:
    """Middleware that gives each request except probes a span."""

    def __init__(self, app: ASGIApp, tracer: "Tracer") -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self._app(scope, receive, send)
        from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        parent = TraceContextTextMapPropagator().extract(sent)
        # Exceptions are not recorded: their text may quote a prompt.
        with self._tracer.start_as_current_span(
            f"{scope['method']} {endpoint_of(scope)}",
            parent,
            SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            scope[TRACE_ID] = format_trace_id(span.get_span_context().trace_id)
            try:
                await self._app(scope, receive, send)
            finally:
                span.set_attributes(_attributes(scope))
                if scope.get(STATUS, 0) >= FAILED:  # a client's error is no failure of the server
                    span.set_status(Status(StatusCode.ERROR))


def _attributes(scope: Scope) -> dict[str, Any]:
    """Return the attributes of a request that was answered. Times are in seconds.

    Names that OpenTelemetry's conventions for HTTP and for generative AI have are theirs.
    """
    attributes = {
        "http.request.method": scope["method"],
        "http.route": endpoint_of(scope),
        "http.response.status_code": scope.get(STATUS, NOT_ANSWERED),
        "ringkv.request_id": scope.get(REQUEST_ID, ""),
        "ringkv.key": caller_of(scope).label or None,
    }
    counter: UsageCounter | None = scope.get(USAGE_COUNTER)
    if counter is not None:
        usage, first = counter.usage(), counter.first_token
        kv = usage.get("kv", {})
        attributes |= {
            "gen_ai.request.model": scope[MODEL],
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "ringkv.cached_tokens": usage.get("prompt_tokens_details", {}).get("cached_tokens"),
            "ringkv.seconds.total": perf_counter() - scope[ARRIVED],
            "ringkv.seconds.first_token": None if first is None else first - scope[ARRIVED],
            "ringkv.seconds.queue": counter.queue_seconds,
            "ringkv.seconds.prefill": counter.prefill_seconds,
            **{f"ringkv.kv.{name}": kv.get(name) for name in ("policy", "kept", "evicted", "ring_wraps")},
        }
    return {name: value for name, value in attributes.items() if value is not None}
