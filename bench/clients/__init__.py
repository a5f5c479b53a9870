"""Existing clients, unmodified, against `ringkv serve`; see `__main__`."""
