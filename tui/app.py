"""The dashboard application: one run, its screens, the way between them, and what is remembered."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.message import Message

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.views.choosing import choose
from hloscope.tui.far import FarRun
from hloscope.tui.heavy import OneByOne
from hloscope.tui.navigation import SCREENS, TITLES, History, Place, neighbour
from hloscope.tui.palette import Actions
from hloscope.tui.screens import import_all, import_screen, make_screen
from hloscope.tui.screens.base import RunScreen
from hloscope.tui.screens.help import HelpScreen
from hloscope.tui.screens.one_key import OneKeyScreen
from hloscope.tui.state import State
from hloscope.tui.themes import SAFE
from hloscope.tui.widgets.parts import PARTS

if TYPE_CHECKING:
    from rich.style import Style
    from textual.widget import Widget

    from hloscope.core.views.run import Run

_SWITCH_SECONDS = 0.0005
"""How long a thread that works may keep the one that answers keys waiting; it asks several times for each key."""


_IMPORT_AFTER_SECONDS = 0.3
"""The first screen is drawn by then."""

_QUIET_SECONDS = 0.5
"""After so long without a key there is time for what nobody asked for yet."""

_TIDY_SECONDS = 2.0
"""After so long without a key, and with nothing at work, there is time to look for garbage."""

_THREADS = 64
"""Pieces of work that can be under way at once, waiting ones among them."""

_DRAWN_SECONDS = 0.03
"""What was said is drawn after so long: with the next frame."""

_ARRIVAL_SECONDS = 5.0
"""How long a key waits for a screen at most."""

_TURNS = 4
"""Turns of the loop until a widget that changed has told its screen so: its own, the screen's, and one in reserve."""

_GC_THRESHOLDS = (2_000, 1_000_000, 1_000_000)
"""Only what is just made is looked through by itself: more stops every thread for as long as a key may take."""

_MUCH = 25
"""Times that what was just made was looked through, from which looking through all of it takes too long."""


class Probe(Message):
    """Follows a key on its way."""


class DashboardApp(App[None]):
    """The dashboard on one run; the caller opens and closes the run."""

    TITLE = "hloscope"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS = {Actions}
    COMPONENT_CLASSES: ClassVar[set[str]] = set(PARTS)
    COMMAND_PALETTE_BINDING = "colon,ctrl+p"

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key if key != "-" else "minus", f"screen('{name}')", title, show=False)
            for name, key, title in SCREENS
        ),
        Binding("b,backspace,alt+left", "back", "Back", show=False),
        Binding("B,alt+right", "forward", "Forward", show=False),
        Binding("m", "mark", "Mark this place (then a letter)", show=False),
        Binding("apostrophe", "to_mark", "To a mark (then its letter)", show=False, key_display="'"),
        Binding("T", "next_theme", "Next theme", show=False),
        Binding("colon,ctrl+p", "command_palette", "Commands", key_display=":"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self, run: Run, *, start: Place | None = None, other: str | None = None, state: State | None = None
    ) -> None:
        super().__init__()
        self.run_opened = run
        self.state = state or State()
        self.other = other
        """A second path that the compare screen opens first."""
        self.heavy = OneByOne()
        """Held by work on copies, fusion and buffers, each of which is worked out once for the run."""
        self.parts: dict[str, Style] = {}
        """Styles of parts in the present theme, as far as they were asked for."""
        self.next_module: int | None = None
        """The module of the same path that is wanted instead, when the dashboard ends."""
        self._start = start
        self._history = History()
        self._marks: dict[str, Place] = {}
        self._screens: dict[str, RunScreen] = {}
        self._key = f"{os.path.abspath(run.source.path)}|{run.source.module}"
        self._kept: dict[str, Any] = self.state.run(self._key)
        self.ahead: list[str] | None = None
        """Screens still to be made while nobody types; None until the first one is there."""
        self._laid_out = ""
        """The screen made ahead that has no layout yet."""
        self._opening = False
        """Whether a screen is in the making that a key asked for."""
        self._pressed = 0.0
        """When the last key or click came."""
        self._saved = 0.0
        """When the state was last written."""
        self._untidy = True
        self._dropped = False
        """Whether there is much to be given back."""
        self.colours = 0
        """How often colours changed: a screen that was styled before must be styled anew."""
        self._typed: deque[events.Key] = deque()
        self._dealt = asyncio.Event()
        self._delivery: asyncio.Task[None] | None = None
        self.register_theme(SAFE)

    def get_css_variables(self) -> dict[str, str]:
        """The theme's, and some blended ones: styles of parts of a line know no transparency."""
        found = super().get_css_variables()
        ink, paper = Color.parse(found["foreground"]), Color.parse(found["background"])
        here = paper.blend(Color.parse(found["primary"]), 0.4)
        away = paper.blend(Color.parse(found["primary"]), 0.18)
        mine = {"muted": paper.blend(ink, 0.65), "faint": paper.blend(ink, 0.4), "here": here, "away": away}
        return found | {name: colour.hex for name, colour in mine.items()}

    def refresh_css(self, animate: bool = True) -> None:
        """Other colours, also for what is drawn from `parts`."""
        self.parts.clear()
        self.colours += 1
        super().refresh_css(animate)
        for screen in self._screens.values():
            for widget in screen.query("LinePane, StripChart, BufferMap"):
                widget.refresh()

    # ---------------------------------------------------------------- opening and leaving
    def on_mount(self) -> None:
        """To the place asked for, else where one was the last time, else to the overview."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        # The usual pool has few threads; those here mostly wait for the reader, and none may wait for another.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "hloscope"))
        if isinstance(self.run_opened, FarRun):
            self.run_opened.take_up()
        theme = self.state.get("theme")
        if isinstance(theme, str) and theme in self.available_themes:
            self.theme = theme
        for letter, data in (self._kept.get("marks") or {}).items():
            place = Place.from_json(data)
            if place is not None:
                self._marks[letter] = place
        place = Place.from_json(self._kept.get("place"))
        if self._start is not None:
            place = self._start
        elif self.other is not None:
            place = Place("compare")
        if place is not None and place.stage is not None and not 0 <= place.stage < len(self.run_opened.outline):
            place = None
        self._show(place or Place("overview"))
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.freeze()
        self.set_interval(_QUIET_SECONDS / 2, self._at_leisure)
        if not self.is_headless:
            self.look_ahead()

    def look_ahead(self) -> None:
        """Import, then make the other screens while nobody types: the first visit of one keeps no key waiting."""

        def imported() -> None:
            import_all()
            self.ahead = [name for name, _, _ in SCREENS]

        # Not a worker: nobody waits for it, and leaving does not.
        thread = threading.Timer(_IMPORT_AFTER_SECONDS, imported)
        thread.daemon = True
        thread.start()

    def on_unmount(self) -> None:
        """Garbage is collected as everywhere again."""
        if self._delivery is not None:
            self._delivery.cancel()
        if isinstance(self.run_opened, FarRun):
            # Threads that wait for an answer would keep the process from ending.
            self.run_opened.abandon()
        gc.set_threshold(700, 10, 10)
        gc.unfreeze()

    async def on_event(self, event: events.Event) -> None:
        """Keys one after the other: what is typed ahead is meant for what the keys before it open."""
        if isinstance(event, events.InputEvent):
            self._pressed = time.monotonic()
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._typed.append(event)
            if self._delivery is None or self._delivery.done():
                self._delivery = asyncio.create_task(self._deliver())
            return
        await super().on_event(event)

    async def _deliver(self) -> None:
        """Hand out what was typed, each key when the one before it was dealt with."""
        while self._typed:
            until = time.monotonic() + _ARRIVAL_SECONDS
            while self._unfinished() and time.monotonic() < until:
                await asyncio.sleep(0.002)
            try:
                await super().on_event(self._typed.popleft())
            except Exception as error:  # as for any other message: it is shown when the dashboard ends
                self._handle_exception(error)
            # What the first probe follows may have sent something up itself, which the second one follows.
            await self._dealt_with()
            await self._dealt_with()
            if not self._typed and isinstance(self.screen, RunScreen):
                await self._draw(self.screen)

    async def _dealt_with(self) -> None:
        """Until a probe took the way of the key, from the widget that has the focus up to here."""
        self._dealt.clear()
        if (self.focused or self.screen).post_message(Probe()):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._dealt.wait(), _ARRIVAL_SECONDS)

    async def _draw(self, screen: RunScreen) -> None:
        """What a key changed is drawn at once, all of it: frames come later, and one for each part of it."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if screen.is_current:
            screen.draw_now()

    def _unfinished(self) -> bool:
        """Whether the screen that the next key is meant for is not there yet."""
        return self._opening or (isinstance(self.screen, RunScreen) and not self.screen.begun)

    @property
    def typing(self) -> bool:
        """Whether a key was not dealt with yet."""
        return bool(self._typed) or (self._delivery is not None and not self._delivery.done())

    def on_probe(self) -> None:
        """The key before it was dealt with."""
        self._dealt.set()

    def _at_leisure(self) -> None:
        """One thing that nobody asked for yet."""
        quiet = time.monotonic() - self._pressed
        if quiet < _QUIET_SECONDS:
            return
        if quiet >= _TIDY_SECONDS and self._pressed > self._saved:
            # A terminal that is closed asks nobody.
            self._saved = time.monotonic()
            self.remember()
        if self._laid_out:
            if self._screens[self._laid_out].lay_out_ahead(self.size):
                self._laid_out = ""
        elif self.ahead:
            name = self.ahead.pop(0)
            if name not in self._screens:
                self._make(name)
                self._get_screen(name)  # composed and styled, not shown
                self._laid_out = name
                self._untidy = True
        elif any(worker.is_running for worker in self.workers):
            self._untidy = True
        elif self._untidy and quiet >= _TIDY_SECONDS:
            # What the analyses made stays as long as the run: later collections need not look at it again, nor this
            # one where it is much.
            self._untidy = False
            if self._dropped or gc.get_count()[1] < _MUCH:
                gc.collect(2 if self._dropped else 1)
            self._dropped = False
            gc.freeze()

    def dropped(self) -> None:
        """Something large is no longer needed: look at everything once."""
        gc.unfreeze()
        self._untidy = self._dropped = True

    def remember(self) -> None:
        """Write down where one is."""
        screens = dict(self._kept.get("screens") or {})
        for name, screen in self._screens.items():
            if screen.begun:
                screens[name] = screen.remembered()
        here = self.here
        self.state.put_run(
            self._key,
            {
                "place": here.to_json() if here is not None else None,
                "marks": {letter: place.to_json() for letter, place in self._marks.items()},
                "screens": screens,
            },
        )
        self.state.put("theme", self.theme)
        self.state.save()

    def other_module(self, words: str) -> None:
        """End, so that another module of the path can be opened: its number, or a regular expression on its name.

        Raises UsageError where there is none.
        """
        run = self.run_opened
        modules = run.modules
        if len(modules) < 2:
            raise UsageError(f"{run.source.path} holds no other module")
        self.next_module, _ = choose(modules, words.strip(), run.source.path)
        self._end()

    async def action_quit(self) -> None:
        """Remember where one was, stop what runs, and end."""
        self._end()

    def _end(self) -> None:
        self.remember()
        self.workers.cancel_all()
        self.exit()

    # ---------------------------------------------------------------- places
    @property
    def run_screen(self) -> RunScreen | None:
        """The screen of the run that is shown, or lies below a question."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, RunScreen):
                return screen
        return None

    @property
    def here(self) -> Place | None:
        """Where one is."""
        screen = self.run_screen
        return screen.place() if screen is not None else None

    def go(self, place: Place) -> None:
        """To another place; the present one can be come back to."""
        here = self.here
        if here is not None:
            self._history.leave(here)
        self._show(place)

    def _show(self, place: Place) -> None:
        screen = self._screens.get(place.screen) or self._make(place.screen)
        fresh = not screen.begun
        if self.screen is not screen:
            if isinstance(self.screen, RunScreen):
                self.switch_screen(place.screen)
            else:
                self.push_screen(place.screen)
        bare = Place(place.screen)
        if place != bare or fresh:
            self.call_after_refresh(screen.go_to, place)

    def _make(self, name: str) -> RunScreen:
        screen = self._screens[name] = make_screen(name, self.run_opened)
        kept = (self._kept.get("screens") or {}).get(name)
        screen.recall(kept if isinstance(kept, dict) else {})
        # Known before it is drawn, so that it is not laid out twice.
        screen.set_classes(screen.classes_at(self.size))
        screen.styled = self.colours
        self.install_screen(screen, name)
        return screen

    def act_on(self, screen: str, action: str, widget: type[Widget] | None = None) -> None:
        """Go to a screen and do there what one of its keys, or of the keys of a widget in it, does."""
        if self.here is None or self.here.screen != screen:
            self.go(Place(screen))

        async def act() -> None:
            node = self._screens[screen]
            await self.run_action(action, node if widget is None else node.query_one(widget))

        self.call_after_refresh(act)

    def go_by_words(self, text: str) -> None:
        """To what the user typed: a stage number, a screen, or an instruction."""
        screen = self.run_screen
        if not text or screen is None:
            return
        if re.fullmatch(r"-?\d+", text):
            try:
                self.go(Place("stages", self.run_opened.resolve(int(text)), "diff"))
            except HloscopeError as error:
                screen.say(error.message)
            return
        named = next((name for name, title in TITLES.items() if text.lower() in (name, title.lower())), None)
        if named is not None:
            self.go(Place(named))
        else:
            self.go(Place("stages", None, "why", text.removeprefix("%")))

    def action_screen(self, name: str) -> None:
        """Another screen, as it was left."""
        here, screen = self.here, self.run_screen
        if here is not None and here.screen == name:
            return
        if name in self._screens or screen is None:
            self.go(Place(name))
            return
        self._opening = True
        screen.say(f"opening {TITLES[name]} …")
        self.run_worker(self._open(name), group="opening")

    async def _open(self, name: str) -> None:
        """The key is answered before a screen is made, which takes a moment; what it needs is imported elsewhere."""
        try:
            await asyncio.sleep(_DRAWN_SECONDS)
            await asyncio.to_thread(import_screen, name)
        finally:
            self._opening = False
        if self.screen_stack:
            self.go(Place(name))

    def action_next_screen(self, step: int) -> None:
        """The screen beside this one."""
        here = self.here
        if here is not None:
            self.action_screen(neighbour(here.screen, step))

    async def action_back(self) -> None:
        """To where the last jump came from."""
        self._travel(self._history.back, "nothing to go back to")

    def action_forward(self) -> None:
        """To where back came from."""
        self._travel(self._history.forward, "nothing to go forward to")

    def _travel(self, step: Any, nothing: str) -> None:
        screen = self.run_screen
        if screen is None:
            return
        place = step(screen.place())
        if place is None:
            screen.say(nothing)
        else:
            self._show(place)

    def action_mark(self) -> None:
        """Give this place a letter."""
        here = self.here
        if here is None:
            return

        def keep(letter: str | None) -> None:
            screen = self.run_screen
            if letter and screen is not None:
                self._marks[letter] = here
                screen.say(f"marked {letter}")

        self.push_screen(OneKeyScreen("mark this place with which letter?"), keep)

    def action_to_mark(self) -> None:
        """To the place that has a letter."""

        def jump(letter: str | None) -> None:
            screen = self.run_screen
            if not letter or screen is None:
                return
            place = self._marks.get(letter)
            if place is None:
                screen.say(f"there is no mark {letter}; marks: {' '.join(sorted(self._marks)) or 'none'}")
            else:
                self.go(place)

        self.push_screen(OneKeyScreen(f"to which mark?  {' '.join(sorted(self._marks))}"), jump)

    # ---------------------------------------------------------------- manners
    def action_help(self) -> None:
        """The keys of the screen that is shown."""
        self.push_screen(HelpScreen(self.screen))

    def save_picture(self) -> None:
        """The screen as it is, as an SVG file in the current folder; no file is written over."""
        # The palette that asked is gone from the screen by then.
        self.call_after_refresh(self._save_picture)

    def _save_picture(self) -> None:
        screen = self.run_screen
        if screen is None:
            return
        taken = (f"hloscope-{screen.NAME}{'' if n == 1 else f'-{n}'}.svg" for n in count(1))
        name = next(one for one in taken if not os.path.exists(one))
        try:
            self.save_screenshot(name, path=os.getcwd())
        except OSError as error:
            screen.say(f"{name}: {error.strerror}")
        else:
            screen.say(f"written to {name}")

    def choose_theme(self, name: str) -> None:
        """Another theme; it is remembered."""
        self.theme = name

    def action_next_theme(self) -> None:
        """Dark, light, and the one for every eye, in turn."""
        wanted = [one for one in ("textual-dark", "textual-light", SAFE.name) if one in self.available_themes]
        at = wanted.index(self.theme) if self.theme in wanted else -1
        self.theme = wanted[(at + 1) % len(wanted)]
        screen = self.run_screen
        if screen is not None:
            screen.say(f"theme {self.theme}")

    def edit(self, file: str, line: int) -> None:
        """Open a file at a line in ``$VISUAL`` or ``$EDITOR``, the dashboard waiting."""
        screen = self.run_screen
        if screen is None:
            return
        if not os.path.isfile(file):
            screen.say(f"{file}:{line} is not on this machine")
            return
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        try:
            with self.suspend():
                subprocess.run([*shlex.split(editor), f"+{line}", file], check=False)
        except SuspendNotSupported:
            screen.say(f"{file}:{line} (no editor can be started here)")
        except (OSError, ValueError) as error:
            screen.say(f"$EDITOR {editor}: {error}")
