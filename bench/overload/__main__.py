"""overload: a server at twice its sustainable rate, on this machine alone.

    python -m bench.overload                        SmolLM2, 8 slots, 64 clients: ten minutes and what precedes them
    python -m bench.overload --minutes 1

First the answers are taken while other requests fill the other slots, so that decode steps have the same shape. Then
the sustainable rate is measured, with as many clients as slots. Then every kind of malformed request is sent a few
times, because a thread's memory grows with its first large one. Then the load: requests arrive at random at twice the
sustainable rate; of a fifth the client disconnects, and a twentieth is malformed. The status is 1 if a check fails.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.arguments import command_line, report
from bench.overload.clients import (
    COMPLETIONS,
    LENGTHS,
    MALFORMED,
    Plan,
    Question,
    alone,
    in_turn,
    questions,
    run,
    texts,
    wrong,
)
from bench.overload.http import metrics, send
from bench.overload.verdict import MAXIMA, Bounds, Check, Processes, Run, Watch, checks, p99, settled
from bench.results import keep, table
from bench.serving import serving

PROMPTS = 8  # of each length
CHUNKS = 5  # prompts whose prefill is timed
EACH = 8  # of each kind of malformed request, before the load


def main() -> None:
    args = _arguments()
    asked = questions(texts(args.model, PROMPTS, LENGTHS))
    flags = ("--slots", args.slots, "--kv-budget", args.budget, "--max-queue", args.queue, "--graphs", args.graphs)
    with serving("--model", args.model, *flags, "--prefix-store", 0, "--max-prompt", 1024) as server:
        figures, verdict = asyncio.run(_measure(args, server.pid, server.port, asked))
    names = ("model", "clients", "minutes", "slots", "budget", "queue", "graphs")
    rows = [(check.name, check.measured, check.allowed, "passed" if check.passed else "FAILED") for check in verdict]
    shown = table(("check", "found", "allowed", ""), rows)
    keep("overload", {name: getattr(args, name) for name in names}, [figures], shown)
    sys.exit(not figures["passed"])


async def _measure(
    args: argparse.Namespace, pid: int, port: int, asked: Sequence[Question]
) -> tuple[dict[str, Any], list[Check]]:
    processes = Processes.of(pid)
    answers, gaps = await alone(port, asked, beside=args.slots - 1)
    chunk_s = await _chunk(port, max(asked, key=lambda question: len(question.prompt)))
    report(f"a step of all slots takes {median(gaps) * 1e3:.1f} ms, a chunk {chunk_s * 1e3:.0f} ms")
    rate = await in_turn(port, asked, args.slots, args.warm)
    report(f"sustainable: {rate:.2f} requests/s; {args.minutes:g} minutes at twice that")
    await asyncio.gather(*(send(port, *request) for request in MALFORMED for _ in range(EACH)))
    await asyncio.sleep(1)
    before = await processes.resources(port)
    watch = Watch(processes, port)
    watching = asyncio.create_task(watch.run())
    sent = await run(port, asked, Plan(args.clients, 2 * rate, 60 * args.minutes))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    after = await settled(processes, port, before)
    for name, samples in zip(MAXIMA, (watch.http_bytes, watch.engine_bytes), strict=True):
        report(f"{name}, MB over time: {', '.join(f'{rss / 1e6:.0f}' for rss in samples[:: len(samples) // 12 or 1])}")
    mistaken = wrong(sent, answers)
    for request in mistaken[:3]:
        report(f"wrong: {request.question}\n{request.reply.text!r}")
    done = Run(sent, len(mistaken), before, after, watch.queued, watch.http_bytes, watch.engine_bytes)
    bounds = Bounds(args.queue, args.http_mb * 10**6, args.engine_mb * 10**6, median(gaps), chunk_s)
    verdict = list(checks(done, bounds))
    figures = {
        "sent_requests": len(sent),
        "sustained_rate": rate,
        "refused_share": sum(request.reply.status == 503 for request in sent) / len(sent),
        "step_s": median(gaps),
        "chunk_s": chunk_s,
        "itl_p99_s": p99(sent),
        "http_bytes": max(watch.http_bytes),
        "engine_bytes": max(watch.engine_bytes),
        "passed": int(all(check.passed for check in verdict)),
    }
    return figures, verdict


async def _chunk(port: int, question: Question) -> float:
    """Return the median seconds to prefill and compress a prompt of one chunk while nothing else runs."""

    async def spent() -> float:
        samples = await metrics(port)
        return sum(samples[f"ringkv_{name}_seconds_sum"] for name in ("prefill", "compress"))

    seconds = []
    while (await metrics(port))["ringkv_requests_running"]:  # the requests that ran beside the questions
        await asyncio.sleep(0.1)
    for _ in range(CHUNKS):
        before = await spent()
        await send(port, COMPLETIONS, Question(question.prompt, 1).body(stream=False))
        while (after := await spent()) == before:
            await asyncio.sleep(0.05)
        seconds.append(after - before)
    return median(seconds)


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, model="smollm2", minutes=10.0, clients=64, slots=8, budget=512)
    parser.add_argument("--queue", type=int, default=16, help="requests that may wait")
    parser.add_argument("--graphs", default="compiled", help="as of ringkv serve")
    parser.add_argument("--warm", type=float, default=30, help="seconds in which the sustainable rate is measured")
    parser.add_argument("--http-mb", type=int, default=400, help="bound of the HTTP process's memory")
    parser.add_argument("--engine-mb", type=int, default=3000, help="bound of the engine process's memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
