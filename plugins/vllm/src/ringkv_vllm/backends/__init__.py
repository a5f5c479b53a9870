"""Attention backends: vLLM's, with the cache of this plug-in. Each knows only how to read and write blocks."""
