"""A document several times longer than the cache, read under three policies by one engine.

One sentence is hidden in the document. A full cache holds it, a cache of recent tokens has lost it, and SnapStream, in
an eighth of the memory, keeps the tokens that the question attends to: of a word of several tokens perhaps not all. It
shows the mechanism and measures nothing: a model this small misses other sentences under any policy.
"""

from pydoc_data.topics import topics

from ringkv import LLM, KVChoice, SamplingParams

HIDDEN = "The secret word of this document is pineapple."
QUESTION = "What is the secret word of this document?"

paragraphs = topics["string-methods"].split("\n\n")[:60]  # of Python's own manual
document = "\n\n".join([*paragraphs[:40], HIDDEN, *paragraphs[40:]])

llm = LLM("smollm2", kv_budget=4096, slots=1, prompt_tokens=4096)
messages = [{"role": "user", "content": f"{document}\n\n{QUESTION}"}]

for kv in (KVChoice("full"), KVChoice("streaming", budget=512), KVChoice("snapstream", budget=512)):
    result = llm.chat(messages, SamplingParams(max_tokens=24), kv=kv)
    usage, held = result.usage, result.usage.kv
    print(f"{held.policy:10}  kept {held.kept:,} of {usage.prompt_tokens:,} prompt tokens in {held.bytes_held:,} bytes")
    print(f"            {result.text.strip()!r}\n")
