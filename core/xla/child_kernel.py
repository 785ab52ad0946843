"""Child script: the MLIR of a Pallas or Triton kernel, as a custom call carries it, to plain data.

Reads ``{"dialect": "mosaic" | "triton", "body": base64}`` and answers ``{"functions": {name: function}}``: a function
is ``{"attrs": …, "body": block}``, a block ``{"args": [[number, type], …], "ops": […]}``, an operation
``{"op", "in": [number, …], "out": [[number, type], …], "attrs", "regions": [block, …]}``. Values are numbered. Imports
nothing of hloscope.
"""

from __future__ import annotations

import base64
import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(read(request["dialect"], base64.b64decode(request["body"])), file)


def read(dialect: str, body: bytes) -> dict[str, object]:
    lib = import_module("jax._src.lib")
    ir = import_module("jax._src.lib.mlir").ir
    mlir = import_module("jax._src.interpreters.mlir")
    context = mlir.JaxIrContext()
    context.append_dialect_registry(mlir.upstream_dialects)
    context.load_all_available_dialects()
    context.allow_unregistered_dialects = True
    if dialect == "mosaic":
        lib.tpu.register_dialect(context)
    else:
        import_module("jax._src.lib.triton").dialect.register_dialect(context)
    with context:
        try:
            module = ir.Module.parse(body if body[:2] == b"ML" else body.decode())
            if dialect == "mosaic" and b"stable_mosaic" in body:
                passes = import_module("jax._src.lib.mlir").passmanager.PassManager
                passes.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            return {"error": f"the kernel cannot be read: {said[:300]}", "kind": "usage"}
        reader = Reader(ir)
        functions = {}
        for op in module.body.operations:
            name = str(op.operation.attributes["sym_name"])[1:-1]
            functions[name] = {
                "attrs": reader.attributes(op.operation),
                "body": reader.block(op.operation.regions[0].blocks[0]),
                "blocks": len(op.operation.regions[0].blocks),
            }
        return {"functions": functions}


class Reader:
    """Numbers values as it meets them."""

    def __init__(self, ir: Any) -> None:
        self.ir = ir
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def block(self, block: Any) -> dict[str, object]:
        return {
            "args": [[self.number(a), str(a.type)] for a in block.arguments],
            "ops": [self.operation(op.operation) for op in block.operations],
        }

    def operation(self, op: Any) -> dict[str, object]:
        return {
            "op": op.name,
            "in": [self.number(o) for o in op.operands],
            "types": [str(o.type) for o in op.operands],
            "attrs": self.attributes(op),
            "regions": [self.block(r.blocks[0]) for r in op.regions if len(r.blocks)],
            "out": [[self.number(r), str(r.type)] for r in op.results],
        }

    def attributes(self, op: Any) -> dict[str, object]:
        return {name: self.value(op.attributes[name]) for name in op.attributes}

    def value(self, attribute: Any) -> object:
        ir = self.ir
        if isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr)):
            return attribute.value
        if isinstance(attribute, (ir.DenseI32ArrayAttr, ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr)):
            return list(attribute)
        if isinstance(attribute, ir.ArrayAttr):
            return [self.value(item) for item in attribute]
        if isinstance(attribute, ir.DictAttr):
            return {name: self.value(attribute[name]) for name in (str(item.name) for item in attribute)}
        if isinstance(attribute, ir.DenseElementsAttr):
            if attribute.is_splat:
                return {"splat": self.value(attribute.get_splat_value())}
            if isinstance(attribute, (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)):
                return {"dense": list(attribute)}
        return str(attribute)


main()
