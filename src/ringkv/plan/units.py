"""Units: parses the sizes, ratios and shares that users write, and formats sizes."""

import re

from ringkv.base.errors import InvalidRequest

_NUMBER = r"(\d+(?:\.\d+)?)"
_SCALES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
FEWEST = 1024  # bytes; a smaller number without a unit was meant in another one
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str | int, name: str = "memory") -> int:
    """ "1.5GB" is 1.5e9, "80G" 8e10, "16GiB" 16 * 2**30, "4096" itself. Raises `InvalidRequest` naming `name`.

    A text of a few bytes without a unit is refused, because it was forgotten.
    """
    match = re.fullmatch(_NUMBER + r"\s*([KMGT]?)(I?)(B?)", str(text).strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise InvalidRequest(f"{name} is {text!r}; write bytes such as 24GB, 1.5GB, 16GiB or 8000000000", name)
    unit = match[2].upper()
    count = int(float(match[1]) * (_BINARY[unit] if match[3] else _SCALES[unit]))
    if isinstance(text, str) and 0 < count < FEWEST and not match[4]:
        raise InvalidRequest(f"{name} is {text!r}, which is {count} bytes; write a unit, such as {count}GB", name)
    return count


def parse_ratio(text: str | float, name: str = "kv_compression") -> float:
    """ "4x" or 4 is 4.0; at least 1. Raises `InvalidRequest` naming `name`."""
    match = re.fullmatch(_NUMBER + r"\s*x?", str(text).strip(), re.IGNORECASE)
    if match is None or float(match[1]) < 1:
        raise InvalidRequest(f"{name} is {text!r}; write how many times smaller the cache is to be, such as 4x", name)
    return float(match[1])


def parse_share(text: str | float, name: str = "kv_recent") -> float:
    """ "25%" and 0.25 are 0.25, a share; "512" and 512 are 512.0, a count. Raises `InvalidRequest` naming `name`."""
    match = re.fullmatch(_NUMBER + r"\s*(%?)", str(text).strip())
    number = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    is_share = bool(match and match[2]) or number < 1
    if not 0 < number < (1 if is_share else float("inf")) or not (is_share or number.is_integer()):
        raise InvalidRequest(f"{name} is {text!r}; write a share such as 25% (below 100%) or entries such as 512", name)
    return number


def show_bytes(count: float) -> str:
    """Format a size in decimal units with three digits: 17.2 GB, 70.3 kB, 512 B."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}" if abs(count) < 999.5 * scale else f"{count / scale:,.0f} {unit}"
    return f"{count:.0f} B"
