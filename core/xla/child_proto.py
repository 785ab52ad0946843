"""Child script: serialized HLO protos to text, with the installed jaxlib.

Reads ``{"protos": [path, …], "texts": [path, …]}``, writes each text, and answers ``{"done": n}``. Imports nothing of
hloscope, so that it starts fast. A proto that aborts the process costs only itself: the parent goes on behind it.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    from importlib import import_module

    hlo = import_module("jaxlib._hlo")

    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    for proto, text in zip(request["protos"], request["texts"], strict=True):
        with open(proto, "rb") as file:
            data = file.read()
        try:
            shown = hlo.HloModule.from_serialized_hlo_module_proto(data).to_string(options)
        except Exception as error:
            shown = ""
            with open(text + ".error", "w", encoding="utf-8") as file:
                file.write(str(error).splitlines()[0] if str(error) else type(error).__name__)
        with open(text + ".part", "w", encoding="utf-8") as file:
            file.write(shown)
        os.replace(text + ".part", text)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"done": len(request["texts"])}, file)


main()
