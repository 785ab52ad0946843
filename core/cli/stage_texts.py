"""Stage texts for evaluation: of a stage whose text leaves out constants, that of its proto, where it was dumped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_BATCH_BYTES = 256 << 20
"""Bytes of protos that one child process turns into text."""


class StageTexts:
    """Reads the texts of a range of stages; protos are turned into text several at a time, when first asked for."""

    def __init__(self, run: Run, first: int, last: int) -> None:
        self._run = run
        self._numbers = range(first, last + 1)
        self._whole: dict[int, str] = {}
        self._tried: set[int] = set()
        self.notes: list[str] = []
        """What could not be done."""

    def readers(self) -> list[Callable[[], str]]:
        """A function for each stage."""

        def reader(number: int) -> Callable[[], str]:
            return lambda: self.text(number)

        return [reader(number) for number in self._numbers]

    def text(self, number: int) -> str:
        """A stage's text, with its constants as far as the dump has them."""
        from hloscope.core.runtime.elided import ELIDED_MARK

        text = self._run.stage_text(number)
        if ELIDED_MARK not in text:
            return text
        if number not in self._tried:
            self._read_protos(number)
        return self._whole.get(number, text)

    def _read_protos(self, first: int) -> None:
        from hloscope.core.runtime.elided import ELIDED_MARK
        from hloscope.core.xla.protos import protos_to_text

        protos: dict[int, bytes] = {}
        size = 0
        for number in range(first, self._numbers.stop):
            if number in self._tried or (number != first and ELIDED_MARK not in self._run.stage_text(number)):
                continue
            self._tried.add(number)
            proto = self._run.stage_proto(number)
            if proto is None:
                continue
            protos[number] = proto
            size += len(proto)
            if size > _BATCH_BYTES:
                break
        if protos:
            self._keep(list(protos), lambda: protos_to_text(list(protos.values())))

    def _keep(self, numbers: Sequence[int], convert: Callable[[], list[str]]) -> None:
        try:
            texts = convert()
        except HloscopeError as error:
            self.notes.append(
                f"the protos of stage {numbers[0]} and others cannot be read for their constants: {error}"
            )
            return
        self._whole.update(zip(numbers, texts, strict=True))
