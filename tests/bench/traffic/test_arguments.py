import pytest

from bench.traffic.__main__ import arguments


def test_short_prompts_come_from_16_and_64_clients_by_default() -> None:
    args = arguments([])
    assert (args.workload, args.clients, args.rates, args.at_once) == ("short", (16, 64), None, 64)


def test_a_trace_has_rates_and_no_clients() -> None:
    args = arguments(["--workload", "azure-conv", "--rates", "0.5,1,2", "--run", "2026-11-25-a"])
    assert (args.clients, args.rates, args.at_once, args.run) == (None, (0.5, 1.0, 2.0), 32, "2026-11-25-a")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--workload", "mooncake"], "a trace needs --rates"),
        (["--rates", "2,1"], "rates must be above 0 and rise"),
        (["--rates", "1", "--clients", "4"], "short prompts take none"),
        (["--engines", "ringkv,other"], "unknown engine other"),
        (["--run", "mine"], "a run begins with its date"),
    ],
)
def test_a_mistake_is_named(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(argv)
    assert said in capsys.readouterr().err
