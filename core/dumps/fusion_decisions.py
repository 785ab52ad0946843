"""``priority_fusion_dump.txt``: what XLA:GPU's priority-fusion pass decided, as ledger events.

The pass writes every step: a priority computed for a producer and its consumers, a producer ruled out with the
compiler's own reason, and a fusion made. Source: ``openxla/xla:xla/service/gpu/fusion_process_dump.proto``.
"""

from __future__ import annotations

import re

from hloscope.core.dumps.textproto import Message, parse_textproto
from hloscope.core.ledger.events import FusionDecision

PASS_NAME = "priority-fusion"
"""The pass whose decisions the file holds."""
_NOT_WORD = re.compile(r"[^a-z0-9]+")


def parse_fusion_dump(text: str, *, path: str | None = None) -> list[FusionDecision]:
    """The decisions of a fusion dump, in order. Raises ``ParseError`` with the position of the first fault."""
    return fusion_events(parse_textproto(text, path=path))


def fusion_events(message: Message) -> list[FusionDecision]:
    """The decisions of a ``FusionProcessDumpProto``: verdict ``fused``, ``ineligible`` or ``priority``."""
    events: list[FusionDecision] = []
    for step, entry in enumerate(message.messages("fusion_steps")):
        for kind, value in entry.fields:
            if isinstance(value, Message) and (event := _event(step, kind, value)) is not None:
                events.append(event)
    return events


def _event(step: int, kind: str, value: Message) -> FusionDecision | None:
    producer = value.text("producer_name")
    if kind == "fusion":
        consumer, made = value.text("consumer_name"), value.text("fusion_name")
        return FusionDecision(
            step=step,
            subject=producer,
            verdict="fused",
            consumers=(consumer,) if consumer else (),
            made=made or None,
            origin="xla",
        )
    if kind == "producer_ineligible":
        reason = value.text("reason")
        return FusionDecision(
            step=step,
            subject=producer,
            verdict="ineligible",
            code=reason_code(reason) if reason else None,
            reason=reason,
            origin="xla",
        )
    if kind == "update_priority":
        return FusionDecision(
            step=step,
            subject=producer,
            verdict="priority",
            consumers=tuple(value.texts("consumer_names")),
            us_fused=value.number("us_fused"),
            us_unfused=value.number("us_unfused"),
            origin="xla",
        )
    return None


def reason_code(reason: str) -> str:
    """A stable key made of the compiler's words: ``the producer is not fusible`` → ``the_producer_is_not_fusible``."""
    return _NOT_WORD.sub("_", reason.lower()).strip("_")[:80]
