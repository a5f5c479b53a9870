"""The engine: lanes, batch, passes, sampling. It alone knows both models and caches.

Others import `build`, `device`, `device_memory`, `engine`, `head_scores` and `slab`.
"""
