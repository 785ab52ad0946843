"""The command palette: every action of the screen that is shown and of the others, every screen, every theme."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from hloscope.tui.navigation import SCREENS, Place
from hloscope.tui.screens import own_bindings, widget_bindings

Command = tuple[str, str, Callable[[], Any]]


class Actions(Provider):
    """Actions with the key that does the same."""

    def commands(self) -> Iterator[Command]:
        """What each is called, the key that does the same, and the action."""
        from hloscope.tui.app import DashboardApp
        from hloscope.tui.screens.help import key_names

        app = cast(DashboardApp, self.app)
        seen: set[str] = set()
        here = app.here
        own = {one.description for one in own_bindings(here.screen)} if here is not None else set[str]()
        # What only this screen can do comes first: moving about is known.
        for active in sorted(self.screen.active_bindings.values(), key=lambda one: one.binding.description not in own):
            binding = active.binding
            if binding.description and binding.description not in seen and not binding.action.startswith("dismiss"):
                seen.add(binding.description)
                key = binding.key_display or key_names(binding.key)
                yield binding.description, f"key {key}", partial(app.run_action, binding.action, active.node)
        for name, key, title in SCREENS:
            yield f"Screen: {title}", f"key {key}", partial(app.go, Place(name))
        for name, _, title in SCREENS:
            if here is None or name != here.screen:
                for binding in own_bindings(name):
                    key = binding.key_display or key_names(binding.key)
                    run = partial(app.act_on, name, binding.action)
                    yield f"{title}: {binding.description}", f"key {key} there", run
            for kind, binding in widget_bindings(name):
                if binding.description not in seen:
                    key = binding.key_display or key_names(binding.key)
                    run = partial(app.act_on, name, binding.action, kind)
                    yield f"{title}: {binding.description}", f"key {key} {getattr(kind, 'KEYS_OF', 'there')}", run
        yield "Save a picture of this screen (SVG)", "in the folder where hloscope was started", app.save_picture
        for theme in app.available_themes:
            yield f"Theme: {theme}", "", partial(app.choose_theme, theme)

    async def discover(self) -> Hits:
        """Everything, before anything is typed."""
        for title, text, action in self.commands():
            yield DiscoveryHit(title, action, help=text or None)

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for title, text, action in self.commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), action, help=text or None)
