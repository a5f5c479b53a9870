"""HTTP in asyncio: OpenAI's API and the web page, over engines in processes of their own.

Others import `key_files`, `main`, `options`, `watch.log` and `watch.tracing`.
"""
