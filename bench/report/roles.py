"""roles: what `bench.roles` measured of a prefill worker and a decode worker."""

from collections.abc import Sequence

from bench.results import ResultRow, figures, newest, table

ENGINES = {"apart": "a prefill and a decode worker, a core each", "both": "one engine, two cores"}
HEAD = ("SmolLM2, 7 running requests", "p99 between tokens", "while 8k are prefilled", "ratio", "prefill takes")


def roles(rows: Sequence[ResultRow]) -> str:
    """Return the table of steps, and a sentence on tokens, bytes and kills."""
    steps = newest(figures(rows, "roles", part="steps"), "engine", "machine")
    (tokens, sizes), kills = (
        [newest(figures(rows, "roles", part=part), "machine")[-1] for part in ("tokens", "sizes")],
        newest(figures(rows, "roles", part="kills"), "engine", "machine"),
    )
    lost = sum(one["lost_requests"] + one["hung_requests"] for one in kills)
    killed = " and ".join(f"{one['kills']:.0f} of a {one['engine']} worker" for one in kills)
    return (
        f"{table(HEAD, list(map(_steps, steps)))}\n\n"
        f"Of {tokens['requests']} mixed requests {tokens['same']:.0%} have the tokens of one engine. "
        f"{sizes['wrong_transfers']:.0f} of {sizes['transfers']} transfers have other bytes than the formula. "
        f"After kill -9, {killed}, {lost:.0f} requests elsewhere were lost or hung."
    )


def _steps(one: ResultRow) -> tuple[str, ...]:
    times = (f"{1e3 * one[f'itl_{when}_p99_s']:.1f} ms" for when in ("quiet", "reading"))
    return (ENGINES[one["engine"]], *times, f"{one['itl_p99_ratio']:.2f}", f"{one['prefill_s']:.1f} s")
