"""A batch of six prompts in four slots; each running prompt has a cache of 256 entries."""

from ringkv import LLM, SamplingParams

CITIES = ("Paris", "Rome", "Tokyo", "Cairo", "Lima", "Oslo")

llm = LLM("smollm2", kv_budget=256, slots=4, prompt_tokens=1024)
prompts = [llm.encode_chat([{"role": "user", "content": f"In one sentence: what is {city}?"}]) for city in CITIES]
results = llm.generate(prompts, SamplingParams(max_tokens=40))

for city, result in zip(CITIES, results, strict=True):
    print(f"{city}: {result.text.strip()}  [{result.finish_reason}, {result.usage.completion_tokens} tokens]")
print(f"{llm.limits.held_bytes:,} bytes of cache, slots and staging, for any number of prompts")
