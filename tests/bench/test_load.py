import toy

from bench.load import EngineSettings, run_alone


def test_every_client_has_one_request_at_a_time_until_all_are_answered() -> None:
    engine = toy.ToyEngine(toy.limits(slots=2))
    prompts = [[[client, question] for question in range(3)] for client in (5, 7)]
    taken = run_alone(engine, prompts, answer=2)
    requests = [line.work.request for line in engine.log if isinstance(line, toy.Chunk)]
    assert taken > 0
    for client, mine in enumerate(prompts):
        assert [list(one.tokens) for one in requests if one.id == f"{client}"] == mine
    assert len(requests) == 6


def test_the_engine_and_the_server_get_the_same_flags() -> None:
    flags = ["--model", "m", "--slots", "8", "--kv-budget", "512", "--max-prompt", "4096"]
    assert EngineSettings("m", 8, 512, 4096, None).flags == flags
    assert EngineSettings("m", 8, 512, 4096, 1).flags == [*flags, "--threads", "1"]
