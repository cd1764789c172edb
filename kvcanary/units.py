"""Parse and format counts, bytes and times. GiB, ms and % exist only here; everywhere else bytes are int and seconds are float."""

from __future__ import annotations

import math
import re

from kvcanary.errors import ConfigError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
INT64_MAX = (1 << 63) - 1
THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"

INTEGER_FORMS = "16384, 16_384, 16 384, 16k (= 16 000), 16Ki (= 16 384), 1.5M, 2^20"
SIZE_FORMS = "80GiB, 80 GB (= 80 * 10^9), 81559MiB, 1.5TiB, 85520809984"

_SPACES = re.compile(r"[\u0020\u00a0\u2009\u202f]")
_LONG_NUMBER = re.compile(r"(?<![\w.])\d{4,}(?!\w|\.\d)")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+")
_PLAIN = re.compile(r"[+-]?\d+(?:_\d+)*")
_SCALED = re.compile(r"([+-]?\d+(?:\.\d+)?) ?(k|K|M|G|T|Ki|Mi|Gi|Ti)")
_POWER = re.compile(r"(\d{1,6}) ?(?:\^|\*\*) ?(\d{1,3})")
_SIZE = re.compile(r"(\d+(?:[._]\d+)*)\s*([KMGT]i?)?B?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(ns|us|µs|ms|s|min)")
_TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_SCALES = {
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB,
}  # fmt: skip


def parse_integer(text: str) -> int:
    """Read a whole number as operators write it; ConfigError shows the accepted forms.

    `k M G T` are powers of 1000 and `Ki Mi Gi Ti` powers of 1024, as in SGLang's own flags. Nothing is rounded: 12.5 and 1.5e3 are
    refused, and so is a value outside int64.
    """
    stripped = text.strip()
    value: int | None = None
    if _PLAIN.fullmatch(stripped) and len(stripped) <= 40:
        value = int(stripped)
    elif _GROUPED.fullmatch(stripped) and len(stripped) <= 40:
        value = int(_SPACES.sub("", stripped))
    elif (match := _SCALED.fullmatch(stripped)) and len(stripped) <= 40:
        whole, _, fraction = match[1].partition(".")
        scaled = int(whole + fraction) * _SCALES[match[2]]
        value, rest = divmod(scaled, 10 ** len(fraction))
        value = value if rest == 0 else None
    elif match := _POWER.fullmatch(stripped):
        base, exponent = int(match[1]), int(match[2])
        value = base**exponent if base <= 1 or exponent * math.log2(base) < 64 else None
    if value is None or not -INT64_MAX <= value <= INT64_MAX:
        shown = stripped if len(stripped) <= 40 else stripped[:37] + "..."
        raise ConfigError(f"must be a whole number, got {shown!r}; accepted forms: {INTEGER_FORMS}")
    return value


def parse_fraction(text: str) -> float:
    """Read a fraction such as 0.875 or 87.5 %; ConfigError otherwise."""
    stripped = text.strip()
    percent = stripped.endswith("%")
    number = stripped[:-1].strip() if percent else stripped
    if not re.fullmatch(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", number) or len(number) > 30:
        raise ConfigError(f"must be a fraction, got {stripped[:40]!r}; accepted forms: 0.875, 87.5 %")
    return float(number) / 100 if percent else float(number)


def parse_size(text: str) -> int:
    """Read a memory size into bytes; a bare number is bytes, B and GB are decimal, GiB is binary; ConfigError otherwise."""
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped)
    if not match or len(stripped) > 40:
        raise ConfigError(f"must be a size, got {stripped[:40]!r}; accepted forms: {SIZE_FORMS}")
    suffix = match[2] or ""
    scale = _SCALES[suffix[0].upper() + suffix[1:].lower()] if suffix else 1
    digits = match[1].replace("_", "")
    if digits.count(".") > 1:
        raise ConfigError(f"must be a size, got {stripped[:40]!r}; accepted forms: {SIZE_FORMS}")
    whole, _, fraction = digits.partition(".")
    # A size in GiB is rarely a whole number of bytes; half a byte is no loss of meaning.
    value = round(int(whole + fraction) * scale / 10 ** len(fraction)) if fraction else int(whole) * scale
    if value > INT64_MAX:
        raise ConfigError(f"must be below 2^63 bytes, got {stripped[:40]!r}; accepted forms: {SIZE_FORMS}")
    return value


def parse_seconds(text: str) -> float:
    """Read a time with its unit into seconds; a bare number is refused, since nobody can tell seconds from milliseconds. ConfigError."""
    stripped = text.strip()
    match = _TIME.fullmatch(stripped)
    seconds = float(match[1]) * _TIME_UNITS[match[2]] if match and len(stripped) <= 40 else 0.0
    if seconds <= 0:
        raise ConfigError(f"must be a time above zero with its unit, got {stripped[:40]!r}; accepted forms: 20 ms, 1.5 s, 300 us, 2 min")
    return seconds


def format_count(value: int) -> str:
    """1234567 -> '1 234 567' with narrow no-break spaces."""
    return f"{value:,}".replace(",", THIN_SPACE)


def group_digits(text: str) -> str:
    """A formula or a sentence with its whole numbers written as `format_count` does; parts of names and decimals stay."""
    return _LONG_NUMBER.sub(lambda match: format_count(int(match[0])), text)


def format_bytes(value: int | float) -> str:
    """Bytes in the largest binary unit that keeps three or four significant digits, exact below 1 KiB."""
    sign, size = ("-", -value) if value < 0 else ("", value)
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{sign}{size / scale:.2f} {unit}"
    return f"{sign}{size:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds in the unit an operator would say: ns, µs, ms, s, min, h."""
    if value < 0:
        return "-" + format_seconds(-value)
    for unit, scale, limit in (("ns", 1e-9, 1e-6), ("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 120.0), ("min", 60.0, 7200.0)):
        if value < limit:
            number = value / scale
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{value / 3600:.3g} h"


def format_rate(per_second: float, what: str) -> str:
    """'12.3 M tokens/s': a rate always names what it counts."""
    for prefix, scale in (("G ", 1e9), ("M ", 1e6), ("k ", 1e3)):
        if per_second >= scale:
            return f"{per_second / scale:.3g} {prefix}{what}/s"
    return f"{per_second:.3g} {what}/s"


def format_points(difference: float) -> str:
    """A difference of two shares with its sign: '+12.5 %'. Rounding makes it neither none nor whole: '< -99.9 %'."""
    sign, beyond = ("-", "<") if difference < 0 else ("+", ">")
    text = format_fraction(abs(difference))
    if text.startswith("> "):
        return f"{beyond} {sign}{text[2:]}"
    return f"{sign}{text}" if difference else text


def format_value(value: object) -> str:
    """A setting or a fact of any type as text; None is 'none', a list is its entries, told apart also where one holds a comma."""
    if isinstance(value, list | tuple):
        entries = [str(entry) for entry in value]
        return ("; " if any("," in entry for entry in entries) else ", ").join(entries)
    return "none" if value is None else str(value)


def format_fraction(value: float) -> str:
    """0.0194 -> '1.9 %'. A non-zero value never prints as 0 % and a value below one never as 100 %."""
    percent = value * 100
    if percent in (0, 100) or 10 <= abs(percent) < 99.5 or abs(percent) > 100.5:
        return f"{percent:.0f}{THIN_SPACE}%"
    if 99.5 <= percent < 100:
        return f"{percent:.1f}{THIN_SPACE}%" if percent < 99.95 else f"> 99.9{THIN_SPACE}%"
    return f"{percent:.2g}{THIN_SPACE}%" if abs(percent) < 1 else f"{percent:.1f}{THIN_SPACE}%"
