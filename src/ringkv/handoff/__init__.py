"""Prefill in another process than decode.

Others import `address` and `prefill_worker`.
"""
