"""One engine answers questions about a document several times longer than the cache, under three policies.

Each of three documents hides one sentence. The full cache keeps it and the streaming cache evicts it. SnapStream keeps
the tokens that the question attends to, which may not be every token of a word. The example shows the mechanism,
misses included. It is not a measurement; use `ringkv eval` for that.
"""

from pydoc_data.topics import topics

from ringkv import LLM, KVChoice, SamplingParams

FACTS = {"word": "pineapple", "number": "7294", "city": "Lisbon"}  # the first three we tried
CACHES = (KVChoice("full"), KVChoice("streaming", budget=512), KVChoice("snapstream", budget=512))

paragraphs = topics["string-methods"].split("\n\n")[:60]  # from Python's manual
llm = LLM("smollm2", kv_budget=4096, slots=1, prompt_tokens=4096, prefix_store="200MB")
found = dict.fromkeys((kv.policy for kv in CACHES), 0)

for kind, value in FACTS.items():
    hidden = f"The secret {kind} of this document is {value}."
    document = "\n\n".join([*paragraphs[:40], hidden, *paragraphs[40:]])
    messages = [{"role": "user", "content": f"{document}\n\nWhat is the secret {kind} of this document?"}]
    print(f"\n{hidden}")
    for kv in CACHES:
        result = llm.chat(messages, SamplingParams(max_tokens=24), kv=kv)
        kept, prompt = result.usage.kv.kept, result.usage.prompt_tokens
        found[kv.policy] += value in result.text
        print(f"  {kv.policy:10}  kept {kept:5,} of {prompt:,} prompt tokens  {' '.join(result.text.split())}")

print("\nfound: " + ", ".join(f"{policy} {count} of {len(FACTS)}" for policy, count in found.items()))
