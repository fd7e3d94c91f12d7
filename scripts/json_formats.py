"""Checks of JSON Schema's formats that do not use our own expressions."""

import datetime
import re
from urllib.parse import urlsplit

import jsonschema

CHECKER = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid", "regex"])


@CHECKER.checks("date-time", ValueError)
def is_date_time(text: object) -> bool:
    found = datetime.datetime.fromisoformat(str(text))
    return found.tzinfo is not None and str(text)[10] == "T"


@CHECKER.checks("time", ValueError)
def is_time(text: object) -> bool:
    return datetime.time.fromisoformat(str(text)).tzinfo is not None


# RFC 3339, appendix A.
@CHECKER.checks("duration")
def is_duration(text: object) -> bool:
    time = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
    date = r"(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)"
    return bool(re.fullmatch(rf"P({date}({time})?|{time}|\d+W)", str(text), re.ASCII))


@CHECKER.checks("hostname")
def is_hostname(text: object) -> bool:
    labels = str(text).split(".")
    return len(str(text)) <= 253 and all(
        0 < len(label) < 64
        and label.isascii()
        and label.replace("-", "x").isalnum()
        and label[0] != "-" != label[-1]
        for label in labels
    )


@CHECKER.checks("uri", ValueError)
def is_uri(text: object) -> bool:
    parts = urlsplit(str(text))
    allowed = set("-._~:/?#[]@!$&'()*+,;=%")
    return (
        bool(parts.scheme and parts.hostname)
        and (parts.port is None or 0 < parts.port < 65536)
        and all(char.isascii() and (char.isalnum() or char in allowed) for char in str(text))
    )
