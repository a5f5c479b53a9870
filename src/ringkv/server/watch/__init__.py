"""What a server shows of itself: log lines, traces, metrics, the state of its slots, the last hour.

Others import any module of it.
"""
