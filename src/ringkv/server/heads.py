"""check_head: limits on the URL and the headers of a request."""

from starlette.types import Scope

from ringkv.base.errors import HeadersTooLarge, URLTooLong

LONGEST_URL = 8 << 10  # bytes, query included
MOST_HEADERS = 100
LARGEST_HEADERS = 32 << 10  # bytes, names included


def check_head(scope: Scope) -> None:
    """Raise URLTooLong or HeadersTooLarge."""
    length = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if length > LONGEST_URL:
        raise URLTooLong(f"the URL has {length:,} bytes; this server takes {LONGEST_URL:,}")
    count, size = len(scope["headers"]), sum(len(name) + len(value) for name, value in scope["headers"])
    if count > MOST_HEADERS or size > LARGEST_HEADERS:
        raise HeadersTooLarge(
            f"the request has {count:,} headers of {size:,} bytes; this server takes {MOST_HEADERS} of "
            f"{LARGEST_HEADERS:,} bytes"
        )
