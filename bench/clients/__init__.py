"""Clients that people have already, unmodified, against `ringkv serve`: see `__main__`."""
