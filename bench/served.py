"""served: a server with a full cache, and one with a budget and as many slots as the same bytes hold, under one load.

    python -m bench.served --model qwen2.5-coder-1.5b --device cuda:0
    python -m bench.served --model smollm2 --prompt-tokens 4000 --slots 4 --requests 32 --answer 128

Every request has its own text. All are sent at once; each token is streamed. Servers take turns.
"""

import argparse
import os
from dataclasses import asdict, dataclass
from statistics import median

from bench.load import served, texts
from bench.results import gpu_name, keep, table

ROOM = 64  # tokens by which a text may grow when it is tokenised again


@dataclass(frozen=True)
class ServerSettings:
    """A server whose slots have as many entries as a prompt and its answer, or `budget`."""

    model: str
    device: str
    slots: int
    prompt_tokens: int
    answer: int
    budget: int | None

    @property
    def entries(self) -> int:
        return self.budget or self.prompt_tokens + self.answer

    @property
    def flags(self) -> list[str]:
        flags = {"--model": self.model, "--device": self.device, "--slots": self.slots}
        flags |= {"--max-prompt": self.prompt_tokens}
        flags |= {"--kv-budget": self.budget} if self.budget else {"--kv-policy": "full", "--max-output": self.answer}
        return [part for flag, value in flags.items() for part in (flag, str(value))]


@dataclass(frozen=True)
class ServedFigure:
    policy: str
    slots: int
    entries: int  # of a slot
    seconds: float  # until all answers have ended
    tokens_per_s: float  # of all answers


def main() -> None:
    args = _arguments()
    full = ServerSettings(args.model, args.device, args.slots, args.prompt_tokens + ROOM, args.answer, None)
    more = args.slots * full.entries // args.budget
    ours = ServerSettings(args.model, args.device, more, args.prompt_tokens + ROOM, args.answer, args.budget)
    load = texts(args.model, args.requests, [args.prompt_tokens])
    cases, taken = {"full": full, "snapstream": ours}, {"full": list[float](), "snapstream": list[float]()}
    for _ in range(args.rounds):
        for policy, settings in cases.items():
            with served(settings, os.environ) as server:
                server.run(load[:1], args.answer)
                taken[policy].append(server.run(load, args.answer))
            print(f"{policy}: {taken[policy][-1]:.1f} s", flush=True)
    figures = [_figure(policy, one, median(taken[policy]), args) for policy, one in cases.items()]
    keep("served", vars(args), [asdict(one) for one in figures], _shown(figures), device=gpu_name(args.device))


def _figure(policy: str, settings: ServerSettings, seconds: float, args: argparse.Namespace) -> ServedFigure:
    rate = args.requests * args.answer / seconds
    return ServedFigure(policy, settings.slots, settings.entries, seconds, rate)


def _shown(figures: list[ServedFigure]) -> str:
    lines = [
        (
            one.policy,
            f"{one.slots} x {one.entries:,}",
            f"{one.seconds:.1f} s",
            f"{one.tokens_per_s:,.0f}",
            f"{one.tokens_per_s / figures[0].tokens_per_s:.2f}x",
        )
        for one in figures
    ]
    return table(("policy", "slots", "all answered in", "tokens/s", "over full"), lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--answer", type=int, default=512, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--slots", type=int, default=32, help="of the full cache")
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
