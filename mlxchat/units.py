"""Numbers as people read them."""

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(size_bytes: float) -> str:
    """Write bytes with three digits in powers of 1000, as disks and the hub count: 2.26 GB."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {_BYTE_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """So many of something, in words: "1 turn", "1,200 turns"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def and_rate(tokens_per_s: float) -> str:
    """How fast something went, to follow what it was: ", 41.2 tok/s"; nothing if that is 0, the
    rate of what has not happened."""
    return f", {tokens_per_s:,.1f} tok/s" if tokens_per_s else ""


def beginning(text: str, most: int) -> str:
    """The text, or its first characters and how many there are in all."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
