"""The values of JSON Schema's `format` that are enforced, as regular expressions for llguidance.

Its own expressions allow 29 February in every year and the year 0, so dates are written here.
"""

# Python and jsonschema know no year 0, which would be a leap year.
_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = (
    r"(?:00(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:0[1-9]|[1-9][0-9])(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
# Leap seconds are valid on announced days only, and most programs reject them.
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_SPAN_TIME = (
    r"T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
)
_SPAN_DATE = (
    r"(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H16 = "[0-9a-fA-F]{1,4}"
# Eight groups, or fewer on both sides of "::".
_IPV6 = "|".join(
    [
        rf"{_H16}(?::{_H16}){{7}}",
        rf"::(?:{_H16}(?::{_H16}){{0,6}})?",
        rf"{_H16}(?::{_H16}){{0,6}}::",
        *(
            rf"{_H16}(?::{_H16}){{{left - 1}}}::{_H16}(?::{_H16}){{0,{6 - left}}}"
            for left in range(1, 7)
        ),
    ]
)
# At most 251 characters in four labels, of 253 allowed.
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,60}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,15}"
_HEX = "[0-9a-fA-F]"
_PERCENT = f"%{_HEX}{{2}}"
_PATH = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@/-]|{_PERCENT})*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_SPAN_DATE}(?:{_SPAN_TIME})?|{_SPAN_TIME}|[0-9]{{1,4}}W)",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": (
        rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/{_PATH})?"
        rf"(?:\?(?:{_PATH}))?(?:\#(?:{_PATH}))?"
    ),
}
