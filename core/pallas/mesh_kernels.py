"""Turns kernels over a mesh (``pl.kernel``, ``pl.core_map``) into the calls that jax makes of them.

Used inside the tracing child alone. One function over one mesh of tensor cores is lowered by jax as a ``pallas_call``
whose grid is the mesh, whose operands are whole arrays where they lie, and whose core axis is parallel; that is what is
described. Other meshes (sparse cores, warps, several functions side by side) stay what they are.
Source: ``jax-ml/jax:jax/_src/pallas/mpmd.py#_mpmd_map_fallback_lowering``, ``jax/_src/state/discharge.py``.
"""

from __future__ import annotations

import importlib
from typing import Any

STATEFUL = frozenset({"core_map", "run_state", "new_ref", "ref", "freeze"})
"""Primitives that are written down as what they do to values."""
MESHES = frozenset({"TensorCoreMesh"})


def without_references(closed: Any) -> Any:
    """A traced function whose references have become values; the function itself where it has none."""
    if not _mentions(closed.jaxpr, STATEFUL):
        return closed
    return importlib.import_module("jax._src.state.discharge").discharge_state(closed)


def run_state_as_call(eqn: Any) -> Any | None:
    """What a ``run_state`` computes, from values to values; None where a reference begins without one."""
    if not all(eqn.params["is_initialized"]):
        return None
    core = importlib.import_module("jax._src.core")
    return without_references(core.ClosedJaxpr(eqn.params["jaxpr"], ()))


def _mentions(jaxpr: Any, names: frozenset[str]) -> bool:
    core = importlib.import_module("jax._src.core")
    if any(eqn.primitive.name in names for eqn in jaxpr.eqns):
        return True
    return any(_mentions(inner, names) for eqn in jaxpr.eqns for inner in core.jaxprs_in_params(eqn.params))


def as_pallas_call(eqn: Any) -> dict[str, Any] | None:
    """Parameters of the ``pallas_call`` that an ``mpmd_map`` is, or None for one that is none."""
    params = eqn.params
    if len(params["jaxprs"]) != 1 or params["external_meshes"] or type(params["meshes"][0]).__name__ not in MESHES:
        return None
    state = importlib.import_module("jax._src.state")
    if any(isinstance(atom.aval, state.AbstractRef) for atom in eqn.invars):
        return None
    pallas = importlib.import_module("jax._src.pallas.core")
    trees = importlib.import_module("jax.tree_util")
    (kernel,), (mesh,) = params["jaxprs"], params["meshes"]
    inputs, outputs = len(eqn.invars), len(params["out_avals"])
    refs = [variable.aval for variable in kernel.invars]
    elsewhere = mesh.default_memory_space
    scratch = refs[inputs + outputs :]
    grid = pallas.GridSpec(
        grid=tuple(mesh.shape.items()),
        in_specs=tuple(pallas.BlockSpec(memory_space=ref.memory_space or elsewhere) for ref in refs[:inputs]),
        out_specs=tuple(
            pallas.BlockSpec(memory_space=ref.memory_space or elsewhere) for ref in refs[inputs : inputs + outputs]
        ),
        scratch_shapes=tuple(pallas.MemoryRef(ref.inner_aval, ref.memory_space) for ref in scratch),
    )
    _, mapping = pallas.get_grid_mapping(
        grid,
        [ref.inner_aval for ref in refs[:inputs]], trees.tree_structure(tuple(range(inputs))),
        [f"args[{number}]" for number in range(inputs)],
        [ref.inner_aval for ref in refs[inputs : inputs + outputs]], trees.tree_structure(tuple(range(outputs))),
        [f"outputs[{number}]" for number in range(outputs)],
        debug=False,
    )  # fmt: skip
    compiler = params["compiler_params"]
    if compiler is None:
        compiler = importlib.import_module("jax.experimental.pallas.tpu").CompilerParams()
    semantics = tuple(getattr(mesh, "dimension_semantics", ()))
    return {
        "grid_mapping": mapping, "jaxpr": kernel, "name": params["name"], "out_avals": params["out_avals"],
        "input_output_aliases": tuple(params["input_output_aliases"].items()), "mesh": mesh,
        "compiler_params": compiler.replace(dimension_semantics=semantics) if semantics else compiler,
    }  # fmt: skip
