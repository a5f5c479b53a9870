"""stub"""


def demo() -> None:
    """Stub."""
