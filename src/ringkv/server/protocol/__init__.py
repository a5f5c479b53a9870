"""What every connection passes: HTTP, head, host, key, rate, body; and how errors and streams are sent.

Others import any module of it.
"""
