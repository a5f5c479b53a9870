"""Ranks on two machines, both of which are this one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from ringkv.base.config import EngineConfig
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.ranks import Nodes, Rank
from ringkv.ranks import node, rendezvous
from ringkv.ranks.build import build
from ringkv.ranks.engine import RankedEngine
from ringkv.wire.handshake import KEY
from tests.engine import tiny
from tests.engine.test_engine import prompt
from tests.engine.test_families import answers
from tests.ranks.test_ranks import MODELS, PROMPTS, others
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """Two machines with two ranks each, which divide the slots of latents: all operators of a network run."""
    monkeypatch.setenv(KEY, "a secret of 24 characters")
    kind, changes = MODELS["deepseek"]
    tiny.save(tmp_path, kind, **changes)
    nodes = Nodes(2, 0, port=free_ports())
    return tiny.config(tmp_path, threads=1, slots=4, rank=Rank(0, 4), nodes=nodes, attention_parallel="slots")


def free_ports() -> int:
    """Return a port that is free, as is the next one."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@contextmanager
def second_machine(config: EngineConfig) -> Iterator[SpawnProcess]:
    nodes = replace(config.nodes, index=1)
    process = get_context("spawn").Process(target=node.run, args=(replace(config, nodes=nodes), 30.0))
    process.start()
    try:
        yield process
    finally:
        process.join(20)
        process.kill()
        process.join()


@pytest.mark.slow  # processes of two machines
def test_two_machines_answer_as_one_process_and_end_together(config: EngineConfig) -> None:
    prompts = [prompt(length) for length in PROMPTS]
    with second_machine(config) as second:
        engine = build(config)
        assert isinstance(engine, RankedEngine)
        assert answers(engine, *prompts) == answers(build(replace(config, rank=Rank(), nodes=Nodes())), *prompts)
        engine.close()
    assert second.exitcode == 0
    assert not others()


@pytest.mark.slow  # processes of two machines
def test_a_machine_with_other_options_is_refused(config: EngineConfig) -> None:
    other = replace(config, kv=KVChoice("streaming", budget=64))
    refused = pytest.raises(InvalidRequest, match=r"rank [23]")
    with second_machine(other) as second, refused:
        build(config)
    assert second.exitcode == 1
    assert not others()


def test_machines_that_divide_experts_differently_do_not_match(config: EngineConfig) -> None:
    ours, theirs = rendezvous.fingerprint(config), replace(config, rank=config.rank.at(3), threads=9)
    assert rendezvous.fingerprint(theirs) == ours
    assert rendezvous.fingerprint(replace(theirs, rank=replace(config.rank, expert_parallel=True))) != ours


@pytest.mark.parametrize(("secret", "what"), [("", "is not set"), ("short", "has 5 bytes")])
def test_a_secret_is_needed(secret: str, what: str, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, secret)
    for start in (build, lambda config: node.run(config, 1.0)):
        with pytest.raises(InvalidRequest, match=f"RINGKV_RANKS_KEY {what}"):
            start(config)
    assert not others()


def test_a_first_machine_that_does_not_listen_is_named(config: EngineConfig) -> None:
    with refusal("master_addr", r"127\.0\.0\.1:\d+"):
        rendezvous.connected(config, timeout=0.1)
