from dataclasses import replace

import ringkv
from ringkv.server.run.serving import LoadedModel
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import NAMES, Served, serving
from tests.server.echo import channel

LAST_MESSAGE = ChatTemplate({"default": "{{ messages[-1].content }}"}, {})


def test_the_official_client_lists_every_served_name(served: Served) -> None:
    models = served.client.models.list().data
    assert [model.id for model in models] == list(NAMES)
    assert {model.object for model in models} == {"model"}


def test_a_model_is_described_by_a_name_with_a_slash(served: Served) -> None:
    model = served.client.models.retrieve(NAMES[1])
    assert model.id == NAMES[1]
    assert served.http.get(f"/v1/models/{NAMES[0]}").json()["max_model_len"] == served.engine.limits.longest_prompt + 1


def test_a_models_card_has_the_policy_that_requests_get_by_default(served: Served) -> None:
    card = served.http.get(f"/v1/models/{NAMES[0]}").json()
    assert (card["kv_policy"], card["kv_budget"]) == ("streaming", served.engine.limits.capacity)


def test_a_models_card_and_its_responses_have_the_sampling_of_requests_that_set_none(tokenizer: Tokenizer) -> None:
    card = {"temperature": 0.0, "top_p": 0.9}
    recommends = LoadedModel(channel(), tokenizer, LAST_MESSAGE, ("recommends",), sampling=card)
    with serving(channel(), tokenizer, None, others=[recommends]) as served:
        models = served.http.get("/v1/models").json()["data"]
        assert {model["id"]: model["sampling"] for model in models} == {
            **{name: {"temperature": 1.0} for name in NAMES},
            "recommends": card,
        }
        answer = served.post("responses", model="recommends", input="a", max_output_tokens=1).json()
        assert {name: answer[name] for name in card} == card


def test_an_unknown_model_is_not_described(served: Served) -> None:
    assert served.http.get("/v1/models/nobody").json()["error"]["code"] == "model_not_found"


def test_health_and_version_answer(served: Served) -> None:
    assert served.http.get("/health").json() == {"status": "ok"}
    assert served.http.get("/version").json() == {"version": ringkv.__version__}


def test_probes_may_send_head_requests(served: Served) -> None:
    assert served.http.head("/health").status_code == 200


def test_the_list_of_models_may_end_with_a_slash(served: Served) -> None:
    assert served.http.get("/v1/models/").json() == served.http.get("/v1/models").json()


def test_a_page_may_send_requests_if_its_site_is_allowed(tokenizer: Tokenizer, served: Served) -> None:
    preflight = {"origin": "http://here", "access-control-request-method": "POST"}
    with serving(channel(), tokenizer, None, origins=["http://here"]) as open_:
        got = open_.http.options("/v1/chat/completions", headers=preflight)
        assert (got.status_code, got.headers["access-control-allow-origin"]) == (200, "http://here")
        assert open_.http.options("/v1/models", headers=preflight | {"origin": "http://there"}).status_code == 400
    assert served.http.options("/v1/chat/completions", headers=preflight).status_code == 405


def test_the_schema_is_served(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/health"} <= set(paths)


def test_without_an_engine_the_server_is_alive_but_not_ready(slow: Served) -> None:
    assert slow.http.get("/ready").json() == {"status": "ok"}
    slow.engine.alive = False
    assert slow.http.get("/health").json() == {"status": "ok"}
    got = slow.http.get("/ready")
    assert (got.status_code, got.headers["retry-after"]) == (503, "1")
    assert got.json()["error"]["code"] == "engine_restarting"
    assert slow.http.head("/ready").status_code == 503
    slow.engine.alive = True
    assert slow.http.head("/ready").status_code == 200
    assert slow.metric('ringkv_requests_total{endpoint="/ready",status="503"}') == 2


def test_a_decode_worker_is_ready_if_a_prefill_worker_is_connected(slow: Served, monkeypatch) -> None:
    free = slow.engine.stats()
    assert "ringkv_prefill_workers_connected{" not in slow.http.get("/metrics").text  # it prefills itself
    for count, status in ((0, 503), (2, 200)):
        monkeypatch.setattr(slow.engine, "stats", lambda count=count: replace(free, prefill_workers=count))
        got = slow.http.get("/ready")
        assert (got.status_code, "retry-after" in got.headers) == (status, status == 503)
        assert slow.metric("ringkv_prefill_workers_connected") == count
