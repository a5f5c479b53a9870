"""everyday: ten everyday questions, answered by catalogue models greedily and with the sampling that they recommend.

    python -m bench.everyday [--models smollm2,qwen2.5-coder-0.5b] [--weights int4] [--seeds 3] [--show]

A right answer contains a word of its question's list. Each seed samples the ten answers again. Seconds are of all ten
greedy answers together, after the graphs' warm-up, and bytes are of the download.
"""

from dataclasses import replace
from time import perf_counter

from bench.arguments import command_line
from bench.results import described, table
from ringkv import LLM, SamplingParams
from ringkv.residency.catalogue import catalogue
from ringkv.text.generation_config import sampling_of

MODELS = "smollm2,qwen2.5-coder-0.5b,qwen2.5-coder-1.5b"
QUESTIONS = {  # question -> words, of which a right answer has one
    "What is the capital of France?": ("Paris",),
    "How many days are in a leap year?": ("366",),
    "What colour do you get if you mix blue and yellow?": ("green", "Green"),
    "Who wrote Romeo and Juliet?": ("Shakespeare",),
    "What is 7 times 8?": ("56",),
    "At what temperature in Celsius does water boil at sea level?": ("100",),
    "Which planet is the largest in the solar system?": ("Jupiter",),
    "Translate 'good morning' into French.": ("Bonjour", "bonjour"),
    "What is the opposite of 'hot'?": ("cold", "Cold"),
    "How many legs does a spider have?": ("eight", "Eight", "8"),
}
GREEDY = SamplingParams(max_tokens=60)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", default=MODELS, help="catalogue names, joined by commas")
    parser.add_argument("--weights", default="int4", help="bf16, int8 or int4")
    parser.add_argument("--seeds", type=int, default=3, help="sampled answers to each question")
    parser.add_argument("--show", action="store_true", help="also print every answer")
    args = parser.parse_args()
    print(described(), f"weights {args.weights}")
    rows = [_row(name, args.weights, args.seeds, args.show) for name in args.models.split(",")]
    print(table(["model", "download MB", "greedy right", "sampled right", "seconds for ten"], rows))


def _row(name: str, weights: str, seeds: int, show: bool) -> list[str]:
    llm = LLM(name, weights=weights, slots=len(QUESTIONS), kv_budget=512, prompt_tokens=512)
    recommended = sampling_of(llm.config.model_dir)
    started = perf_counter()
    greedy = _right(llm, GREEDY, show)
    seconds = perf_counter() - started
    sampled = sum(_right(llm, replace(GREEDY, seed=seed, **recommended), show) for seed in range(seeds))
    megabytes = catalogue()[name].download_bytes / 1e6
    return [name, f"{megabytes:.0f}", f"{greedy} of 10", f"{sampled} of {10 * seeds}", f"{seconds:.1f}"]


def _right(llm: LLM, sampling: SamplingParams, show: bool) -> int:
    prompts = [llm.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    answers = [result.text.strip() for result in llm.generate(prompts, sampling, progress=False)]
    is_right = [any(word in text for word in words) for words, text in zip(QUESTIONS.values(), answers, strict=True)]
    if show:
        for question, text, right in zip(QUESTIONS, answers, is_right, strict=True):
            print(f"{'right' if right else 'WRONG'}  {question}  {text!r:.150}")
    return sum(is_right)


if __name__ == "__main__":
    main()
