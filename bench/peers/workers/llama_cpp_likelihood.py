"""llama_cpp_likelihood: llama.cpp's loss. It runs in llama.cpp's environment."""

from bench.peers.workers.likelihood import main
from bench.peers.workers.llama_cpp import LlamaCpp


def load(model: str, length: int, threads: int) -> LlamaCpp:
    options = {"slots": 1, "length": length, "cache": "f16", "flash": True, "threads": threads}
    return LlamaCpp(model, options, repack=False)  # repacking does not change the results


if __name__ == "__main__":
    main(load)
