"""The KV cache: body, layouts, selectors, formats and the prefix store.

Others import any module of it.
"""
