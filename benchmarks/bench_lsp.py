"""The language server under a real client: from an edit to its diagnostics, hover, colours of what is on the screen.

    python -m benchmarks.bench_lsp [--instructions 10000 40000 300000] [--rounds 15] [--edits 1000]

Limits at 40,000 instructions: edit to diagnostics 200 ms, hover 30 ms, colours of the visible range 50 ms. `--edits`
makes that many more edits and says what the server's memory does meanwhile. The processor time is the server's: on a
busy machine the clock says more about the others.

The client is pygls' own, over stdio, on the machine's ordinary scheduler. Texts are made here: computations of 200
instructions that call each other as XLA's fusions do, with metadata of ordinary length.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from lsprotocol import types
from pygls.lsp.client import LanguageClient

URI = "file:///bench/module_0001.jit_bench.after_optimizations.txt"
BODY = 200


def module_text(instructions: int) -> str:
    """A module of about that many instructions."""
    lines = ["HloModule jit_bench, is_scheduled=true", ""]
    count = max(instructions // (BODY + 1), 1)
    shape = "f32[128,256]{1,0}"
    for k in range(count):
        lines.append(f"%fused_computation.{k} (param_0.{k}: f32[128,256]) -> f32[128,256] {{")
        lines.append(f"  %param_0.{k} = {shape} parameter(0)")
        before = f"param_0.{k}"
        for n in range(BODY - 1):
            name = f"add.{k}.{n}"
            root = "ROOT " if n == BODY - 2 else ""
            lines.append(
                f"  {root}%{name} = {shape} add(%{before}, %param_0.{k}), "
                f'metadata={{op_name="jit(bench)/jit(main)/layer_{k}/add" source_file="model.py" source_line={n}}}'
            )
            before = name
        lines += ["}", ""]
    lines += ["ENTRY %main (x: f32[128,256]) -> f32[128,256] {", f"  %x = {shape} parameter(0)"]
    before = "x"
    for k in range(count):
        root = "ROOT " if k == count - 1 else ""
        lines.append(f"  {root}%fusion.{k} = {shape} fusion(%{before}), kind=kLoop, calls=%fused_computation.{k}")
        before = f"fusion.{k}"
    return "\n".join([*lines, "}", ""])


class BenchClient:
    """One server process with the texts that it has published findings for."""

    def __init__(self) -> None:
        self.client = LanguageClient("bench", "1")
        self.published: dict[int | None, asyncio.Event] = {}

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params: types.PublishDiagnosticsParams) -> None:
            self.published.setdefault(params.version, asyncio.Event()).set()

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def _(params: types.ShowMessageParams) -> None:
            print(f"  message: {params.message}")

    async def begin(self, text: str) -> None:
        await self.client.start_io(sys.executable, "-m", "hloscope.core.cli.main", "lsp")
        await self.client.initialize_async(types.InitializeParams(capabilities=types.ClientCapabilities()))
        self.client.initialized(types.InitializedParams())
        item = types.TextDocumentItem(URI, "plaintext", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        await self.diagnostics(1)

    async def diagnostics(self, number: int) -> None:
        await self.published.setdefault(number, asyncio.Event()).wait()

    def edit(self, number: int, line: int) -> None:
        """Type one letter of a comment at a line's start, so that every offset behind it moves."""
        where = types.Position(line, 0)
        change = types.TextDocumentContentChangePartial(types.Range(where, where), "\n" if number % 2 else " ")
        document = types.VersionedTextDocumentIdentifier(number, URI)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def hover(self, line: int) -> types.Hover | None:
        params = types.HoverParams(types.TextDocumentIdentifier(URI), types.Position(line, 8))
        return await self.client.text_document_hover_async(params)

    async def colours(self, line: int) -> types.SemanticTokens | None:
        """Of a screen of 60 lines."""
        where = types.Range(types.Position(line, 0), types.Position(line + 60, 0))
        params = types.SemanticTokensRangeParams(types.TextDocumentIdentifier(URI), where)
        return await self.client.text_document_semantic_tokens_range_async(params)

    def memory(self) -> float:
        """MiB that the server holds now."""
        server = self.client._server  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        with open(f"/proc/{server.pid}/status") as status:
            found = next(line for line in status if line.startswith("VmRSS"))
        return int(found.split()[1]) / 1024

    def processor(self) -> float:
        """Milliseconds of processor time that the server's threads have had; 0 where the system does not say."""
        server = self.client._server  # pyright: ignore[reportPrivateUsage]
        if server is None:
            return 0.0
        try:
            tasks = os.listdir(f"/proc/{server.pid}/task")
            return sum(_first_number(f"/proc/{server.pid}/task/{one}/schedstat") for one in tasks) / 1e6
        except OSError:
            return 0.0

    async def end(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()


def _first_number(path: str) -> int:
    with open(path) as opened:
        return int(opened.read().split()[0])


Times = tuple[float, float]
"""Milliseconds by the clock, and of the server's processor time."""


async def timed(bench: BenchClient, call: Callable[[], Awaitable[object]]) -> Times:
    used, start = bench.processor(), time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000, bench.processor() - used


def report(what: str, values: list[Times]) -> None:
    ordered = sorted(clock for clock, _ in values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    processor = statistics.median(used for _, used in values)
    print(
        f"  {what:<42} median {statistics.median(ordered):8.1f} ms   p95 {p95:8.1f} ms   "
        f"processor {processor:7.1f} ms   n={len(values)}"
    )


async def measure(instructions: int, rounds: int, more: int) -> None:
    text = module_text(instructions)
    count = text.count(" = ")
    print(f"{count:,} instructions, {len(text) / 1e6:.1f} MB")
    bench = BenchClient()
    report("start, open, first diagnostics", [await timed(bench, lambda: bench.begin(text))])
    line = text[: len(text) // 2].count("\n")
    await asyncio.sleep(3)
    idle = [await timed(bench, lambda: bench.hover(line + k)) for k in range(rounds * 4)]
    report("hover", idle)
    number = 1

    async def after_edits(then: Callable[[int], Awaitable[object]]) -> list[Times]:
        """Times from an edit to the end of what follows it, given the version of the text."""
        nonlocal number
        times: list[Times] = []
        for _ in range(rounds):
            number += 1
            version = number

            async def edit_and_wait(version: int = version) -> None:
                bench.edit(version, line)
                await then(version)

            times.append(await timed(bench, edit_and_wait))
            await asyncio.sleep(0.2)
        return times

    hovers: list[Times] = []

    for _ in range(rounds):
        number += 1
        bench.edit(number, line)
        await bench.diagnostics(number)
        # The full reader may still be at work: hovers now are those of somebody who looks while it is.
        hovers.append(await timed(bench, lambda: bench.hover(line + 5)))
        await asyncio.sleep(0.2)
    report("edit to first diagnostics", await after_edits(bench.diagnostics))
    report("hover right after the diagnostics", hovers)
    report("edit to hover of the edited text", await after_edits(lambda version: bench.hover(line + 5)))
    report("edit to colours of 60 lines", await after_edits(lambda version: bench.colours(line)))
    report("colours of 60 lines", [await timed(bench, lambda: bench.colours(line)) for _ in range(rounds)])
    if more:
        before = bench.memory()
        for k in range(more):
            number += 1
            bench.edit(number, line)
            if k % 20 == 19:
                await bench.hover(line + 5)
            if k == more // 10:
                await bench.diagnostics(number)
                await asyncio.sleep(4)
                before = bench.memory()
        await bench.diagnostics(number)
        busy = bench.memory()
        await asyncio.sleep(4)  # the server hands memory back when it has rested
        print(f"  memory while at it: {busy:.0f} MiB")
        print(f"  memory after {more // 10:,} and {more:,} edits: {before:.0f} MiB, {bench.memory():.0f} MiB")
    symbols = types.DocumentSymbolParams(types.TextDocumentIdentifier(URI))
    report("outline", [await timed(bench, lambda: bench.client.text_document_document_symbol_async(symbols))])
    await bench.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", type=int, nargs="+", default=[10_000, 40_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--edits", type=int, default=0)
    options = parser.parse_args()
    for instructions in options.instructions:
        asyncio.run(measure(instructions, options.rounds, options.edits))


if __name__ == "__main__":
    main()
