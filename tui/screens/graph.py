"""The neighbourhood of an instruction as a drawn graph that grows on demand; fusions are folded until asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from hloscope.tui.content import Line, plain
from hloscope.tui.drawing import Drawing, draw, to_dot, to_svg
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import RunScreen, Work
from hloscope.tui.show import clipped, names
from hloscope.tui.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual import events
    from textual.app import ComposeResult

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.data import WhyFacts
    from hloscope.core.views.run import Run

MOST = 8
"""Operands or users that one step of growing adds; asked again it adds more."""
NODES = 200
"""Nodes after which the graph no longer grows."""
_LABEL = 34


class Canvas(LinePane, inherit_bindings=False):
    """The pane that the graph is drawn in; its keys move from node to node."""

    KEYS_OF: ClassVar[str] = "in the drawing"
    """How help calls the place where these keys hold."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "screen.side(-1)", "Node to the left", show=False),
        Binding("right,l", "screen.side(1)", "Node to the right", show=False),
        Binding("up,k", "screen.level(-1)", "To an operand", show=False),
        Binding("down,j", "screen.level(1)", "To a user", show=False),
        Binding("space", "screen.grow", "Grow"),
        Binding("enter", "screen.focus_node", "Start here"),
    ]

    class Picked(Message):
        """The mouse was on a cell of the drawing."""

        def __init__(self, x: int, y: int, *, twice: bool) -> None:
            super().__init__()
            self.x, self.y, self.twice = x, y, twice

    def on_click(self, event: events.Click) -> None:
        """The mouse chooses a node; a double click begins anew there."""
        event.prevent_default()
        left, top = self.scroll_offset
        self.post_message(self.Picked(event.x + left, event.y + top, twice=event.chain == 2))


class GraphScreen(RunScreen):
    """One pane that is drawn, and a line on the node under the cursor."""

    NAME = "graph"
    KEYED = (Canvas,)
    PROMPTS = {
        "node": "draw the neighbourhood of which instruction?",
        "export": "write the graph to which file? its ending decides: .dot or .svg",
    }
    LEGEND = """
operands stand above, users below; +n beside a node: that many neighbours are not drawn yet (space adds them)
a fusion, loop or call is one node; z goes inside, and from a parameter of the inside back out
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "ask('node')", "Instruction"),
        Binding("z", "inside", "Inside"),
        Binding("d", "shrink", "Leave it out", show=False),
        Binding("E", "ask('export')", "Export"),
        Binding("greater_than_sign", "stage(1)", "Same in the next stage", show=False),
        Binding("less_than_sign", "stage(-1)", "Same in the stage before", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._stage = len(run.outline) - 1
        self._index: ModuleIndex | None = None
        self._name = ""
        self._told = ""
        """What is said when the stage that was asked for is drawn."""
        self._drawn_nodes: dict[int, None] = {}
        self._here = -1
        self._drawing: Drawing | None = None
        self._labels: dict[int, list[str]] = {}

    def body(self) -> ComposeResult:
        """Headline and canvas."""
        yield Static("", id="head", markup=False)
        yield Canvas(id="canvas")

    def start(self) -> None:
        """Begin at the root of the entry."""
        self.turn_to(self.query_one("#canvas", Canvas))
        if self._index is None:
            self._load(self._stage, "")

    def _load(self, stage: int, name: str) -> None:
        self._stage, self._name = stage, name
        self.ask_core(lambda work: self._read(work, stage), self._put, group="index", what="reading the stage")

    def _read(self, work: Work, stage: int) -> ModuleIndex:
        index = self.run.stage_index(stage)
        index.users(0)  # the table of users is made once; here, not on the thread that answers keys
        return index

    def _put(self, index: ModuleIndex) -> None:
        told, self._told = self._told, ""
        self._index = index
        name = self._name
        start = index.find(name) if name else None
        if start is None and name:
            told = f"stage {self._stage} has no {name}"
            self._ask_where(self._stage, name)
        if start is None:
            entry = index.entry
            start = entry.root if entry is not None else -1
        self._begin(start)
        self.say(told)

    def _ask_where(self, stage: int | None, name: str) -> None:
        """Which stages have an instruction that this one has not."""

        def put(facts: WhyFacts) -> None:
            last = facts.passes[-1] if facts.passes else None
            other = last.other if last is not None else None
            index = self._index if stage == self._stage else None
            node = index.find(other) if index is not None and other else None
            if last is not None and node is not None:
                self._begin(node)
                self.at(self.where())
                self.say(f"stage {stage} has no {name}: {other} does its work in {last.inside or 'its place'}")
                return
            now = f", later {other} does its work" if other else ""
            known = facts.instruction.removeprefix("ROOT ").partition(" = ")[0].removeprefix("%")
            if stage is None or stage != self._stage or (facts.stage, known) == (stage, name):
                return
            span = f"stages {facts.first_stage:,} to {facts.last_stage:,} have it"
            self._told = f"stage {stage} has no {name}: {span}{now}; drawn as of stage {facts.stage:,}"
            self.dashboard.go(Place(self.NAME, facts.stage, "", known))

        self.ask_core(lambda work: self.run.why(name, cancelled=work.cancelled), put, group="where")

    def _begin(self, node: int) -> None:
        index = self._index
        if index is None or node < 0:
            self.query_one("#canvas", Canvas).show([plain("nothing to draw: i names an instruction")])
            return
        self._drawn_nodes = {node: None}
        self._here = node
        self._name = index.name(node)
        self._grow(node)
        self._draw()

    def _grow(self, node: int) -> int:
        """Add neighbours of a node; returns how many."""
        index = self._index
        if index is None:
            return 0
        before = len(self._drawn_nodes)
        for group in (_distinct(index.operands(node)), _distinct(index.users(node))):
            fresh = [one for one in group if one not in self._drawn_nodes][:MOST]
            for one in fresh[: max(0, NODES - len(self._drawn_nodes))]:
                self._drawn_nodes[one] = None
        return len(self._drawn_nodes) - before

    # ---------------------------------------------------------------- drawing
    def _draw(self) -> None:
        index = self._index
        if index is None:
            return
        self._labels = {node: self._label(index, node) for node in self._drawn_nodes}
        edges = [(a, b) for b in self._drawn_nodes for a in index.operands(b) if a in self._drawn_nodes]
        self._drawing = draw(self._labels, edges)
        self._show()

    def _label(self, index: ModuleIndex, node: int) -> list[str]:
        hidden = sum(
            1
            for one in (*_distinct(index.operands(node)), *_distinct(index.users(node)))
            if one not in self._drawn_nodes
        )
        more = f" +{hidden}" if hidden else ""
        inside = f" ⊞{len(index.called(node))}" if index.called(node) else ""
        root = " (result)" if index.computation(index.computation_of(node)).root == node else ""
        return [
            clipped(index.name(node), _LABEL) + root,
            clipped(f"{index.opcode(node)}{inside} {index.shape_text(node)}", _LABEL) + more,
        ]

    def _show(self) -> None:
        drawing, index = self._drawing, self._index
        if drawing is None or index is None:
            return
        canvas = [list(row) for row in drawing.rows]
        kinds: list[list[str]] = [["note"] * len(row) for row in drawing.rows]
        for key, box in drawing.boxes.items():
            told = self._labels[key]
            for number, text in enumerate(told):
                for at, letter in enumerate(text):
                    x, y = box.x + 2 + at, box.y + 1 + number
                    canvas[y][x] = letter
                    kinds[y][x] = ("define" if key == self._here else "name") if number == 0 else "shape"
            if key == self._here:
                for y in range(box.y, box.y + len(told) + 2):
                    for x in range(box.x, box.x + box.width):
                        kinds[y][x] = "differs" if 0 < y - box.y <= len(told) else "modified"
        lines: list[Line] = []
        owner = {box.y + dy: key for key, box in drawing.boxes.items() for dy in range(4) if key == self._here}
        for y, (row, classes) in enumerate(zip(canvas, kinds, strict=True)):
            parts: list[tuple[str, str]] = []
            start = 0
            for x in range(1, len(row) + 1):
                if x == len(row) or classes[x] != classes[start]:
                    parts.append(("".join(row[start:x]), classes[start]))
                    start = x
            name = index.name(owner[y]) if y in owner else None
            lines.append(Line("".join(row), "", name, self._stage, tuple(parts)))
        box = drawing.boxes[self._here]
        pane = self.query_one("#canvas", Canvas)
        pane.show(lines, cursor=box.y + 1)
        pane.scroll_to(
            x=max(0, box.x + box.width // 2 - pane.size.width // 2),
            y=max(0, box.y + 2 - pane.size.height // 2), animate=False, immediate=True, force=True,
        )  # fmt: skip
        self.query_one("#head", Static).update(self._words())
        self.at(self.where())

    def _words(self) -> str:
        index = self._index
        if index is None:
            return ""
        node = self._here
        reads = names([index.name(one) for one in _distinct(index.operands(node))], 5) or "nothing"
        users = names([index.name(one) for one in _distinct(index.users(node))], 5) or (
            "nobody: it is the result" if index.computation(index.computation_of(node)).root == node else "nobody"
        )
        text = index.text(node).strip().split(", metadata=")[0]
        return f"{text}\nreads {reads}; used by {users}; {len(self._drawn_nodes)} nodes drawn"

    # ---------------------------------------------------------------- moving
    def action_side(self, by: int) -> None:
        """The node beside this one."""
        drawing = self._drawing
        if drawing is None:
            return
        row = drawing.layers[drawing.boxes[self._here].layer]
        at = row.index(self._here) + by
        if 0 <= at < len(row):
            self._move(row[at])

    def action_level(self, by: int) -> None:
        """To a neighbour above or below: one that is joined, the nearest of them."""
        drawing = self._drawing
        if drawing is None:
            return
        here = drawing.boxes[self._here]
        joined = [
            drawing.boxes[b if a == self._here else a]
            for a, b in drawing.edges
            if (a == self._here and by > 0) or (b == self._here and by < 0)
        ]
        if joined:
            middle = here.x + here.width // 2
            self._move(min(joined, key=lambda box: abs(box.x + box.width // 2 - middle)).key)
        elif self._grow(self._here):
            self._draw()
        else:
            self.say("no operand" if by < 0 else "no user")

    @on(Canvas.Picked)
    def _picked(self, event: Canvas.Picked) -> None:
        drawing = self._drawing
        for box in drawing.boxes.values() if drawing is not None else ():
            if box.x <= event.x < box.x + box.width and box.y <= event.y < box.y + 4:
                self._move(box.key)
                if event.twice:
                    self.action_focus_node()
                return

    def _move(self, node: int) -> None:
        self._here = node
        self._show()

    def action_grow(self) -> None:
        """Draw the neighbours of the node under the cursor."""
        if len(self._drawn_nodes) >= NODES:
            self.say(f"{NODES} nodes are drawn; enter starts anew at this one")
        elif self._grow(self._here):
            self._draw()
        else:
            self.say("all its neighbours are drawn")

    def action_shrink(self) -> None:
        """Leave the node under the cursor out."""
        if len(self._drawn_nodes) > 1:
            del self._drawn_nodes[self._here]
            self._here = next(iter(self._drawn_nodes))
            self._draw()

    def action_focus_node(self) -> None:
        """Draw the neighbourhood of the node under the cursor."""
        index = self._index
        if index is not None and self._here >= 0:
            self.dashboard.go(Place(self.NAME, self._stage, "", index.name(self._here)))

    def action_inside(self) -> None:
        """Into the computation that a node calls; from a parameter inside, out to the caller."""
        index = self._index
        if index is None or self._here < 0:
            return
        called = index.called(self._here)
        if called:
            root = index.computation(called[0]).root
            self.dashboard.go(Place(self.NAME, self._stage, "", index.name(root)))
            return
        callers = index.callers(index.computation_of(self._here))
        if callers:
            self.dashboard.go(Place(self.NAME, self._stage, "", index.name(callers[0])))
        else:
            self.say("it calls nothing")

    def action_stage(self, by: int) -> None:
        """The same instruction in another stage."""
        stage = self._stage + by
        if 0 <= stage < len(self.run.outline):
            self.dashboard.go(Place(self.NAME, stage, "", self._name))

    def action_why(self) -> None:
        """All that is known of the node under the cursor."""
        index = self._index
        if index is not None and self._here >= 0:
            self.dashboard.go(Place("stages", self._stage, "why", index.name(self._here)))

    def follow(self, line: Line) -> None:
        """A double click starts anew here."""
        self.action_focus_node()

    # ---------------------------------------------------------------- questions and places
    def answered(self, what: str, text: str) -> None:
        """Another instruction, or a file."""
        text = text.strip()
        if not text or self._index is None:
            return
        if what == "node":
            self.dashboard.go(Place(self.NAME, self._stage, "", text.removeprefix("%")))
            return
        path = Path(text).expanduser()
        try:
            if path.suffix == ".dot" and self._drawing is not None:
                path.write_text(to_dot(self._labels, self._drawing.edges), "utf-8")
            elif path.suffix == ".svg" and self._drawing is not None:
                path.write_text(to_svg(self._labels, self._drawing), "utf-8")
            else:
                raise ValueError("the name must end in .dot or .svg")
        except (OSError, ValueError) as error:
            self.say(f"{text}: {error}")
        else:
            self.say(f"wrote {text}")

    def place(self) -> Place:
        """The instruction drawn."""
        return Place(self.NAME, self._stage, "", self._name)

    def go_to(self, place: Place) -> None:
        """Draw another instruction."""
        stage = self._stage if place.stage is None else place.stage
        if self._index is not None and stage == self._stage:
            self._name = place.subject
            self._put(self._index)
        else:
            self._index = None
            self._load(stage, place.subject)

    def where(self) -> str:
        """Stage and node."""
        node = self._index.name(self._here) if self._index is not None and self._here >= 0 else ""
        return f"stage {self._stage} › {node}"


def _distinct(found: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(found))
