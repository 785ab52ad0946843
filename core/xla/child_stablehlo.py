"""Child script: StableHLO (text, MLIR bytecode or a portable artifact) to HLO text or to StableHLO text.

Reads ``{"program": path, "hlo": path or null, "stablehlo": path or null}``, writes what is asked for, and answers
``{"head": what says how many replicas and partitions the module is for}``, with ``"arguments"`` and ``"results"`` where
``@main`` asks for layouts: the ``mhlo.layout_mode`` and ``mhlo.memory_kind`` of each; or ``{"refused": MLIR's own
words}``, with ``"unplaced"``: what it says where the operations have no locations but their lines; or ``{"missing": a
package}``. Imports nothing of hloscope, nor of jax.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from typing import Any

_BYTECODE = b"ML\xefR"
_HEAD_BYTES = 1 << 20
_BESIDE = ("mhlo.layout_mode", "mhlo.memory_kind")
_LOCATION = re.compile(rb" loc\(#[\w.]+\)")


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    with open(request["program"], "rb") as file:
        data = file.read()
    answer: dict[str, object]
    try:
        answer = _convert(request, data)
    except ImportError as error:
        answer = {"missing": error.name or "jaxlib"}
    except OSError:
        raise  # a full disk is no fault of the program
    except Exception as error:
        answer = {"refused": str(error)}
        bare = _LOCATION.sub(lambda match: b" " * len(match[0]), data)
        if bare != data and not data.startswith(_BYTECODE):
            try:
                _convert(request, bare)
            except Exception as again:
                answer["unplaced"] = str(again)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _convert(request: dict[str, Any], data: bytes) -> dict[str, object]:
    mlir = import_module("jaxlib._jax").mlir
    hlo = import_module("jaxlib._hlo")
    if request["hlo"] is not None:
        computation = mlir.mlir_module_to_xla_computation(data, use_tuple_args=False, return_tuple=False)
        module = hlo.HloModule.from_serialized_hlo_module_proto(computation.as_serialized_hlo_module_proto())
        options = hlo.HloPrintOptions()
        options.print_large_constants = True
        _write(request["hlo"], module.to_string(options))
    if not data.startswith(_BYTECODE):
        if request["stablehlo"] is not None:
            _write(request["stablehlo"], data.decode("utf-8"))
        told: dict[str, object] = {"head": data[:_HEAD_BYTES].decode("utf-8", "replace")}
        if request["hlo"] is not None and any(name.encode() in data for name in _BESIDE):
            with _context():
                told |= _asked(import_module("jaxlib.mlir.ir").Module.parse(data))
        return told
    with _context():
        program = mlir.deserialize_portable_artifact(data)
        if request["stablehlo"] is not None:
            _write(request["stablehlo"], program.operation.get_asm(enable_debug_info=True))
        return {"head": program.operation.get_asm(large_elements_limit=4)[:_HEAD_BYTES], **_asked(program)}


def _asked(module: Any) -> dict[str, object]:
    """What stands beside each argument and result of ``@main``; nothing for a module without it."""
    ir = import_module("jaxlib.mlir.ir")
    entry = next((one for one in module.body.operations if _name(one) == "main"), None)
    if entry is None:
        return {}
    found: dict[str, object] = {}
    for side, attribute in (("arguments", "arg_attrs"), ("results", "res_attrs")):
        beside = entry.attributes[attribute] if attribute in entry.attributes else ()
        found[side] = [
            [ir.StringAttr(one[name]).value if name in one else None for name in _BESIDE]
            for one in map(ir.DictAttr, beside)
        ]
    return found


def _name(operation: Any) -> str | None:
    attributes = operation.operation.attributes
    if "sym_name" not in attributes:
        return None
    return import_module("jaxlib.mlir.ir").StringAttr(attributes["sym_name"]).value


def _context() -> Any:
    """An MLIR context that knows what jax writes. Source: ``jax/_src/interpreters/mlir.py#make_ir_context``."""
    ir = import_module("jaxlib.mlir.ir")
    known = ir.DialectRegistry()
    import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(known)
    context = ir.Context()
    context.append_dialect_registry(known)
    context.load_all_available_dialects()
    for name in ("stablehlo", "chlo", "sdy", "mpmd"):
        import_module(f"jaxlib.mlir.dialects.{name}").register_dialect(context)
    import_module("jaxlib.mlir.dialects.mhlo").register_mhlo_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


main()
