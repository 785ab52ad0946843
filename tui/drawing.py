"""A graph drawn in characters: layers from operands down to users, boxes, and lines that meet where they cross.

Nodes are placed by longest path; an edge over several layers passes through a point of its own in each. Order within a
layer follows the mean of the neighbours. The same placing gives characters for the terminal and an SVG picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    0: " ", 1: "│", 2: "│", 3: "│", 4: "─", 8: "─", 12: "─", 5: "┘", 9: "└", 6: "┐", 10: "┌", 7: "┤", 11: "├",
    13: "┴", 14: "┬", 15: "┼",
}  # fmt: skip
_GAP = 2
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Box:
    """A placed node: cells from `x` to `x + width`, three lines from `y`."""

    key: int
    x: int
    y: int
    width: int
    layer: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """Everything placed."""

    boxes: Mapping[int, Box]
    rows: tuple[str, ...]
    """The lines between boxes and their frames, as characters; labels are not in it."""
    edges: tuple[tuple[int, int], ...]
    width: int
    layers: tuple[tuple[int, ...], ...]
    """Keys of the boxes by layer, from left to right."""


def draw(labels: Mapping[int, Sequence[str]], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Place nodes (key to lines of its label) and the edges between them, each from operand to user."""
    edges = [(a, b) for a, b in dict.fromkeys(edges) if a in labels and b in labels and a != b]
    layer = _layers(labels, edges)
    columns: list[list[object]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for key in labels:
        columns[layer[key]].append(key)
    steps: list[tuple[object, object]] = []
    for a, b in edges:
        before: object = a
        for between in range(layer[a] + 1, layer[b]):
            point = (a, between)
            if point not in columns[between]:
                columns[between].append(point)
                steps.append((before, point))
            before = point
        steps.append((before, b))
    steps = list(dict.fromkeys(steps))
    _order(columns, steps)
    widths: dict[object, int] = {
        one: max(map(len, labels[one])) + 4 if isinstance(one, int) else 1 for row in columns for one in row
    }
    center = _place(columns, steps, widths)
    return _paint(labels, columns, steps, widths, center, layer, tuple(edges))


def _layers(labels: Mapping[int, Sequence[str]], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Longest path from a node without operands; an edge that closes a circle is not counted."""
    operands: dict[int, list[int]] = {key: [] for key in labels}
    for a, b in edges:
        operands[b].append(a)
    found: dict[int, int] = {}
    for start in labels:
        stack: list[tuple[int, bool]] = [(start, False)]
        open_now: set[int] = set()
        while stack:
            key, done = stack.pop()
            if done:
                open_now.discard(key)
                found[key] = max((found.get(one, -1) + 1 for one in operands[key]), default=0)
            elif key not in found and key not in open_now:
                open_now.add(key)
                stack.append((key, True))
                stack += [(one, False) for one in operands[key] if one not in found and one not in open_now]
    users: dict[int, list[int]] = {key: [] for key in labels}
    for a, b in edges:
        users[a].append(b)
    for key in sorted(found, key=lambda one: -found[one]):  # sources stand right above their first user
        below = [found[one] for one in users[key] if found[one] > found[key]]
        if below:
            found[key] = min(below) - 1
    return found


def _order(columns: list[list[object]], steps: Sequence[tuple[object, object]]) -> None:
    above: dict[object, list[object]] = {}
    below: dict[object, list[object]] = {}
    for a, b in steps:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    for round_number in range(_ROUNDS):
        down = round_number % 2 == 0
        near = above if down else below
        rows = range(1, len(columns)) if down else range(len(columns) - 2, -1, -1)
        for number in rows:
            other = {one: at for at, one in enumerate(columns[number - 1 if down else number + 1])}
            own = {one: at for at, one in enumerate(columns[number])}

            def mean(one: object, near: dict[object, list[object]] = near, other: dict[object, int] = other,
                     own: dict[object, int] = own) -> float:  # fmt: skip
                found = [other[two] for two in near.get(one, ()) if two in other]
                return sum(found) / len(found) if found else own[one]

            columns[number].sort(key=mean)


def _place(
    columns: list[list[object]], steps: Sequence[tuple[object, object]], widths: Mapping[object, int]
) -> dict[object, int]:
    """Centre of each node: near its neighbours above, none over another."""
    above: dict[object, list[object]] = {}
    for a, b in steps:
        above.setdefault(b, []).append(a)
    center: dict[object, int] = {}
    for row in columns:
        at = 0
        for one in row:
            half = widths[one] // 2
            near = [center[two] for two in above.get(one, ()) if two in center]
            wish = sum(near) // len(near) - half if near else at
            at = max(at, wish)
            center[one] = at + half
            at += widths[one] + _GAP
    widest = max((center[row[-1]] + widths[row[-1]] // 2 for row in columns if row), default=0)
    for row in columns:  # what stands too far left moves under the middle where nothing is above it
        if row and not any(above.get(one) for one in row):
            shift = (widest - (center[row[-1]] + widths[row[-1]] // 2)) // 2
            for one in row:
                center[one] += max(0, shift)
    return center


def _paint(
    labels: Mapping[int, Sequence[str]], columns: list[list[object]], steps: Sequence[tuple[object, object]],
    widths: Mapping[object, int], center: Mapping[object, int], layer: Mapping[int, int],
    edges: tuple[tuple[int, int], ...],
) -> Drawing:  # fmt: skip
    tall = [max((len(labels[one]) + 2 for one in row if isinstance(one, int)), default=1) for row in columns]
    leaving: list[list[tuple[object, object]]] = [[] for _ in columns]
    at_row = {one: number for number, row in enumerate(columns) for one in row}
    for a, b in steps:
        leaving[at_row[a]].append((a, b))
    tops: list[int] = []
    y = 0
    lanes: list[dict[object, int]] = []
    for number, row in enumerate(columns):
        tops.append(y)
        bent = [a for a in row if any(center[a] != center[b] for c, b in leaving[number] if c == a)]
        lanes.append({a: lane for lane, a in enumerate(bent)})
        y += tall[number] + (max(1, len(bent)) + 1 if leaving[number] else 0)
    width = max((center[one] + widths[one] // 2 + 2 for row in columns for one in row), default=1)
    grid = [bytearray(width) for _ in range(max(1, y))]

    def down(x: int, first: int, last: int) -> None:
        for row in range(first, last + 1):
            grid[row][x] |= (_UP if row > first else 0) | (_DOWN if row < last else 0)

    def across(x0: int, x1: int, row: int) -> None:
        for x in range(min(x0, x1), max(x0, x1) + 1):
            grid[row][x] |= (_LEFT if x > min(x0, x1) else 0) | (_RIGHT if x < max(x0, x1) else 0)

    for number, pairs in enumerate(leaving):
        for a, b in pairs:
            start, end = tops[number] + tall[number] - 1, tops[number + 1]
            if center[a] == center[b]:
                down(center[a], start, end)
                continue
            lane = start + 1 + lanes[number][a]
            down(center[a], start, lane)
            across(center[a], center[b], lane)
            down(center[b], lane, end)
    boxes: dict[int, Box] = {}
    for number, row in enumerate(columns):
        for one in row:
            if isinstance(one, int):
                x = center[one] - widths[one] // 2
                boxes[one] = Box(one, x, tops[number], widths[one], number)
                last = tops[number] + len(labels[one]) + 1
                if last < tops[number] + tall[number] - 1:
                    down(center[one], last, tops[number] + tall[number] - 1)
                for line in (tops[number], last):
                    across(x, x + widths[one] - 1, line)
                for side in (x, x + widths[one] - 1):
                    down(side, tops[number], last)
            elif tall[number] > 1:
                down(center[one], tops[number], tops[number] + tall[number] - 1)
    rows = tuple("".join(_LINES[cell] for cell in row) for row in grid)
    kept = tuple(tuple(one for one in row if isinstance(one, int)) for row in columns)
    return Drawing(boxes, rows, edges, width, kept)


def to_dot(labels: Mapping[int, Sequence[str]], edges: Sequence[tuple[int, int]]) -> str:
    """The same graph for graphviz."""

    def quoted(lines: Sequence[str]) -> str:
        return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'

    out = ["digraph hlo {", "  node [shape=box, fontname=monospace];"]
    out += [f"  n{key} [label={quoted(lines)}];" for key, lines in labels.items()]
    out += [f"  n{a} -> n{b};" for a, b in edges]
    return "\n".join([*out, "}", ""])


def to_svg(labels: Mapping[int, Sequence[str]], drawing: Drawing) -> str:
    """The same placing as a picture; a cell is 8 by 18 points."""
    wide, high = 8, 18
    width, height = drawing.width * wide, len(drawing.rows) * high
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="monospace" font-size="13">',
        '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for a, b in drawing.edges:
        one, two = drawing.boxes[a], drawing.boxes[b]
        x1, y1 = (one.x + one.width / 2) * wide, (one.y + len(labels[a]) + 2) * high - 6
        x2, y2 = (two.x + two.width / 2) * wide, two.y * high + 6
        mid = (y1 + y2) / 2
        out.append(
            f'<path d="M{x1},{y1} C{x1},{mid} {x2},{mid} {x2},{y2}" fill="none" stroke="#666" marker-end="url(#a)"/>'
        )
    for key, box in drawing.boxes.items():
        x, y = box.x * wide, box.y * high + 6
        tall = (len(labels[key]) + 2) * high - 12
        out.append(
            f'<rect x="{x}" y="{y}" width="{box.width * wide}" height="{tall}" fill="#fff" stroke="#333" rx="3"/>'
        )
        for number, line in enumerate(labels[key]):
            out.append(f'<text x="{x + 2 * wide}" y="{y + (number + 1) * high}">{escape(line)}</text>')
    return "\n".join([*out, "</svg>", ""])
