"""Several API keys under load: their shares of the slots, and what is counted when one is refused."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from toy import Begun

from ringkv.server.key_files import read_keys
from ringkv.server.protocol.guard import Access
from ringkv.server.protocol.keys import ApiKeys
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import Served, serving
from tests.server.echo import channel


def post_as(served: Served, key: str, prompt: str) -> httpx.Response:
    body, headers = {"prompt": prompt, "max_tokens": 20}, {"authorization": f"Bearer {key}"}
    return served.http.post("/v1/completions", json=body, headers=headers)


def test_one_keys_many_requests_do_not_delay_anothers_one(tokenizer: Tokenizer) -> None:
    keys = {label: f"{label}-0123456789abcdef" for label in ("many", "one")}
    access = Access(ApiKeys(read_keys((), {"RINGKV_API_KEYS": ",".join(f"{k}:{v}" for k, v in keys.items())})))
    with serving(channel(seconds=0.005), tokenizer, None, access=access) as served, ThreadPoolExecutor(41) as clients:
        many = [clients.submit(post_as, served, keys["many"], "ab") for _ in range(40)]
        while len(served.engine.submitted) < 40:
            time.sleep(0.01)
        one = clients.submit(post_as, served, keys["one"], "xyz").result()
        waiting = sum(not future.done() for future in many)
        assert all(future.result().status_code == 200 for future in many)
    assert one.json()["choices"][0]["text"].startswith("xyzxyz")
    owners = {request.id: request.owner for request in served.engine.submitted}
    begun = [owners[line.request_id] for line in served.engine.engine.log if isinstance(line, Begun)]
    assert sorted(owners.values()) == ["many"] * 40 + ["one"]
    assert begun.index("one") < 30
    assert waiting > 5


def test_a_call_beyond_its_keys_rate_is_counted_as_rejected(tokenizer: Tokenizer) -> None:
    with serving(channel(), tokenizer, None, access=Access(per_minute=1)) as served:
        statuses = [served.post("completions", prompt="a", max_tokens=1).status_code for _ in range(3)]
        assert statuses == [200, 429, 429]
        assert served.metric('ringkv_requests_rejected_total{reason="rate_limit_exceeded"}') == 2
