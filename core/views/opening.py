"""From a PATH to the stages behind it."""

from __future__ import annotations

from hloscope.core.errors import UsageError
from hloscope.core.views.inputs import InputKind, classify, read_hlo_text
from hloscope.core.views.stages import StageSource, TextSource


def open_stages(path: str, module: str | None = None) -> StageSource:
    """The stages of whatever `path` is. Raises a HloscopeError of one line for what cannot be opened."""
    given = classify(path)
    if given.kind in (InputKind.DIRECTORY, InputKind.ARCHIVE):
        from hloscope.core.views.dump_source import DumpSource

        return DumpSource(path, module)
    if given.kind is InputKind.LEDGER:
        from hloscope.core.views.ledger_source import LedgerSource

        return LedgerSource(path, module)
    source = TextSource(read_hlo_text(given), path)
    if module is not None:
        from hloscope.core.views.choosing import choose

        try:
            choose(source.modules(), module, path)
        except UsageError as error:
            raise UsageError(f"{error.message}: it holds {source.source.module or 'one module'}", path=path) from None
    return source
