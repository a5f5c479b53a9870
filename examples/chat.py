"""A streamed conversation. The cache stays at 256 entries while the conversation grows past that."""

from ringkv import LLM, SamplingParams

QUESTIONS = ("What is a list in Python?", "How do I sort one?", "And in reverse order?")

llm = LLM("smollm2", kv_budget=256, slots=1, prompt_tokens=2048)
messages = []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    print(f"> {question}")
    for piece in llm.stream_chat(messages, SamplingParams(max_tokens=120)):
        print(piece.text, end="", flush=True)
    messages.append({"role": "assistant", "content": piece.result.text})
    usage = piece.result.usage
    seen = usage.prompt_tokens + usage.completion_tokens
    print(f"\n[{seen} tokens seen, at most {usage.kv.capacity} in the cache, {usage.kv.evicted} evicted]\n")
