"""Numbers as text that people read."""

from __future__ import annotations

import math

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def short(value: float | None) -> str:
    """Write three digits and a prefix: 0.0123, 12.3, 4.57M; "" for None."""
    if value is None or not math.isfinite(value):
        return "" if value is None else str(value)
    if abs(value) < 1000:
        text = f"{value:.3g}"
        return text if "e" not in text or abs(value) < 1e-4 else f"{value:.0f}"
    power = min(int(math.log10(abs(value)) / 3 + 1e-9), len(PREFIXES) - 1)
    if abs(float(f"{value / 1000**power:.3g}")) >= 1000 and power < len(PREFIXES) - 1:
        power += 1  # 999,999 is 1M
    return f"{float(f'{value / 1000**power:.3g}'):g}{PREFIXES[power]}"


def seconds(value: float | None) -> str:
    """Write seconds with a unit: 12.3 ms, 4.5 s, 3 min 20 s, 2 h 5 min."""
    if value is None:
        return ""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if 0 < value < 999.5 * size:
            return f"{short(value / size)} {unit}"
    if value < 99.5:
        return f"{short(value)} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def time_unit(most: float) -> tuple[float, str]:
    """Return the factor and the name of the unit for an axis of up to so many seconds."""
    return (1e3, "milliseconds") if most < 1 else (1.0, "seconds")


def size(nbytes: float | None) -> str:
    """Write bytes in binary units: 12.3 MiB."""
    if nbytes is None:
        return ""
    power = 0 if nbytes < 1 else min(int(math.log2(nbytes) / 10), 4)
    return f"{short(nbytes / 1024**power)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
