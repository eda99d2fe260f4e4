"""Durations for people."""

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_536_000


def time_of(seconds: float) -> str:
    for unit, name, least in (
        (YEAR, "years", 2 * YEAR),
        (DAY, "days", 2 * DAY),
        (HOUR, "h", 2 * HOUR),
        (MINUTE, "min", 2 * MINUTE),
    ):
        if seconds >= least:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
