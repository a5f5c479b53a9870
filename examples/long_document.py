"""A document several times longer than the cache, read under three policies by one engine.

One sentence is hidden in the document, three times another one. A full cache holds it, a cache of recent tokens has
lost it, and SnapStream keeps the tokens that the question attends to: of a word of several tokens perhaps not all. It
shows the mechanism, misses included, and measures nothing: `ringkv eval` does.
"""

from pydoc_data.topics import topics

from ringkv import LLM, KVChoice, SamplingParams

FACTS = {"word": "pineapple", "number": "7294", "city": "Lisbon"}  # the first three that were tried
CACHES = (KVChoice("full"), KVChoice("streaming", budget=512), KVChoice("snapstream", budget=512))

paragraphs = topics["string-methods"].split("\n\n")[:60]  # of Python's own manual
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
