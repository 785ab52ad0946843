"""Numbers, bars and columns as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
RISING = " ▁▂▃▄▅▆▇█"


def show_bytes(count: float | None) -> str:
    """Bytes for a person; ``-`` where unknown."""
    if count is None:
        return "-"
    value = float(count)
    if abs(value) < 1024:
        return f"{value:.0f} B"
    unit = ""
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024:
            break
    return f"{value:.1f} {unit}"


def show_us(us: float | None) -> str:
    """Microseconds for a person; ``-`` where unknown."""
    return "-" if us is None else f"{us:,.2f} us" if us < 1000 else f"{us / 1000:,.2f} ms"


def counted(count: int, word: str) -> str:
    """``1 event``, ``12 events``."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def bar(value: float, most: float, width: int) -> str:
    """A bar of up to `width` cells, in eighths of a cell; a value above nought shows at least one eighth."""
    if most <= 0 or value <= 0 or width <= 0:
        return ""
    eighths = max(1, round(8 * width * min(1.0, value / most)))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def clipped(text: str, width: int) -> str:
    """At most `width` characters; the end of a name tells more than its middle."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if width > 1 else text[:width]


def tail(text: str, width: int) -> str:
    """At most `width` characters, from the end."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def names(found: Sequence[str], most: int = 10) -> str:
    """Names in a row, the rest counted."""
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def columns(rows: Iterable[Sequence[str]], right: Iterable[int] = (), widest: int = 48) -> list[str]:
    """Rows of cells as lines of aligned columns; those in `right` are set to the right."""
    table = [[clipped(cell, widest) for cell in row] for row in rows]
    if not table:
        return []
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    to_right = set(right)
    out: list[str] = []
    for row in table:
        cells = [
            cell.rjust(width) if at in to_right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return out
