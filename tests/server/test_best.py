from ringkv.base.events import TokenLogprob
from ringkv.server.best import best
from ringkv.server.generation import TokenOutput
from ringkv.server.schemas import CompletionBody


def answer(*logprobs: float) -> list[TokenOutput]:
    return [TokenOutput(n, "x", n, n == 0, TokenLogprob(value)) for n, value in enumerate(logprobs)]


def test_the_highest_mean_log_probability_wins_within_each_prompt() -> None:
    unlikely, likely, long = answer(-3.0), answer(-1.0), answer(-0.5, -0.5, -0.5, -0.5)
    body = CompletionBody(prompt=["a", "b"], best_of=3, n=2, logprobs=0)
    assert best([unlikely, likely, long, likely, unlikely, unlikely], body) == [long, likely, likely, unlikely]


def test_log_probabilities_that_were_not_requested_are_not_returned() -> None:
    (kept,) = best([answer(-3.0), answer(-1.0)], CompletionBody(prompt="a", best_of=2))
    assert [output.logprob for output in kept] == [None]
