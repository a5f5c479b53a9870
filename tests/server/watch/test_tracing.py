"""Spans, kept in memory by OpenTelemetry's SDK."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ringkv.base.errors import RingKVError
from ringkv.server.watch import tracing
from ringkv.server.watch.tracing import NOT_INSTALLED, Telemetry, tracer_of, wanted_endpoint
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import channel

SECRET = "my secret"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"  # of the W3C specification


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(tokenizer: Tokenizer, spans: InMemorySpanExporter) -> Iterator[Served]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(tracer=provider.get_tracer("test"))
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    with serving(channel(seconds=0.005), tokenizer, template, telemetry=telemetry) as served:
        yield served


def finished(spans: InMemorySpanExporter, count: int = 1) -> Sequence[ReadableSpan]:
    """Wait for `count` spans; one ends after its answer was sent."""
    deadline = time.monotonic() + 10
    while len(found := spans.get_finished_spans()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_has_one_span_with_the_figures_of_its_answer(traced: Served, spans: InMemorySpanExporter) -> None:
    answer = traced.post("completions", prompt=SECRET, max_tokens=5)
    (span,) = finished(spans)
    found, usage = attributes(span), answer.json()["usage"]
    assert (span.name, span.kind, span.status.status_code) == (
        "POST /v1/completions",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.request.model"] == NAMES[0]
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] == 9
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 5
    for name in ("policy", "kept", "evicted", "ring_wraps"):
        assert found[f"ringkv.kv.{name}"] == usage["kv"][name]
    assert found["ringkv.request_id"] == answer.headers["x-request-id"]
    assert span.start_time
    assert span.end_time
    taken = (span.end_time - span.start_time) / 1e9
    queue, prefill = found["ringkv.seconds.queue"], found["ringkv.seconds.prefill"]
    assert 0 <= queue + prefill < found["ringkv.seconds.first_token"] < found["ringkv.seconds.total"] <= taken


def test_a_stream_ends_its_span_with_its_last_token(traced: Served, spans: InMemorySpanExporter) -> None:
    traced.events("chat/completions", messages=[{"role": "user", "content": SECRET}], max_tokens=7)
    assert attributes(finished(spans)[0])["gen_ai.usage.output_tokens"] == 7


def test_a_span_continues_the_trace_of_its_traceparent(traced: Served, spans: InMemorySpanExporter) -> None:
    traced.http.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    traced.http.get("/v1/models", headers={"traceparent": "nonsense"})
    ours, fresh = finished(spans, 2)
    assert ours.context
    assert ours.parent
    assert (f"{ours.context.trace_id:032x}", f"{ours.parent.span_id:016x}") == (TRACE, PARENT)
    assert fresh.parent is None


def test_a_trace_that_its_sender_does_not_sample_has_no_span(traced: Served, spans: InMemorySpanExporter) -> None:
    traced.http.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    traced.http.get("/version")
    assert [span.name for span in finished(spans)] == ["GET /version"]


def test_probes_have_no_spans_and_unknown_paths_share_a_name(traced: Served, spans: InMemorySpanExporter) -> None:
    for path in ("/health", "/ready", "/metrics", "/a", "/b"):
        traced.http.get(path)
    assert [span.name for span in finished(spans, 2)] == ["GET other", "GET other"]


def test_no_text_of_a_prompt_is_in_a_span_even_if_the_request_fails(
    traced: Served, spans: InMemorySpanExporter
) -> None:
    traced.post("completions", prompt=SECRET, temperature=-1)
    traced.post("completions", prompt=f"{SECRET}\0", max_tokens=5)  # its logits are not finite
    refused, failed = finished(spans, 2)
    assert [refused.status.status_code, failed.status.status_code] == [StatusCode.UNSET, StatusCode.ERROR]
    assert "secret" not in refused.to_json() + failed.to_json()


@pytest.mark.parametrize(
    ("flag", "environment", "endpoint"),
    [
        (None, {}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, "http://a"),
        ("http://b", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, "http://b"),
        ("http://b", {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_traces_are_off_unless_an_endpoint_is_given(
    flag: str | None, environment: dict[str, str], endpoint: str | None
) -> None:
    assert wanted_endpoint(flag, environment) == endpoint


def test_without_an_endpoint_nothing_of_opentelemetry_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk", None)
    with tracer_of(None) as tracer:
        assert tracer is None


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter", None)
    assert not tracing.is_installed()
    with pytest.raises(RingKVError, match=r"pip install 'ringkv\[otel\]'"), tracer_of("http://127.0.0.1:4318"):
        pass
    assert "ringkv[otel]" in NOT_INSTALLED
