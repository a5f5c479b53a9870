import json

from bench.clients.__main__ import CLIENTS, KEPT, PAGE, with_table
from bench.clients.check import Check


def test_the_page_shows_what_the_clients_did() -> None:
    text = PAGE.read_text()
    assert with_table(text, json.loads(KEPT.read_text())) == text


def test_a_failure_is_shown_as_one_under_its_clients_version() -> None:
    kept = {
        "about": {"lm-eval": "one machine", "openai": "another"},
        "checks": {
            "lm-eval": [Check("lm-eval", "counting", False, "3 | 4")._asdict()],
            "openai": [Check("openai", "talking", True, "hi")._asdict()],
        },
    }
    page = with_table("a\n<!-- clients:begin -->\nold\n<!-- clients:end -->\nz", kept)
    assert "old" not in page
    lines = page.splitlines()
    assert [line.split(" | ")[:3] for line in lines[4:6]] == [
        ["| openai 3.51.0", "talking", "passed"],
        ["| lm-eval 0.4.13", "counting", "**failed**"],
    ]
    assert "3 \\| 4" in lines[5]
    assert "lm-eval: one machine. openai: another." in page


def test_every_client_has_been_run() -> None:
    assert set(json.loads(KEPT.read_text())["checks"]) == set(CLIENTS)
