"""stats: counters of the processes that schedule and compact. vLLM's `/metrics` shows them beside its own.

The server is another process. It adds up what the others have written to the directory PROMETHEUS_MULTIPROC_DIR, which
`ringkv-vllm serve` makes. Without that variable no other process sees the counters.
"""

from prometheus_client import Counter

EVICTED = Counter("ringkv:evicted_tokens", "Tokens that requests no longer held when they ended or were preempted.")
SAVED = Counter("ringkv:saved_blocks", "Blocks that these requests would have held too if they kept every token.")
COMPACTION = Counter("ringkv:compaction_seconds", "Seconds in which tokens of prompts were selected and copied.")
