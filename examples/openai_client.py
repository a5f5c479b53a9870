"""The official OpenAI client with ringkv. Run `pip install openai`, and `ringkv serve` in another terminal."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"), api_key="unused")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name three rivers of Europe."}],
    max_tokens=80,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"kv_policy": "snapstream", "kv_budget": 512},  # this request's cache
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print("\n\nusage:", chunk.usage.model_dump(exclude_none=True))
