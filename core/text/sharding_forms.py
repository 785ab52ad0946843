"""Shardings, meshes and device groups in the one form in which XLA prints each.

Every function reads at a cursor and gives the text; it raises ParseError where XLA's parser refuses. Sources:
``openxla/xla:xla/hlo/parser/hlo_parser.cc`` (ParseSharding, ParseMesh, ParseCollectiveDeviceListBase),
``xla/hlo/ir/hlo_sharding.cc`` (Print, Subgroup, PartialTile), ``tile_assignment.cc`` (CanonicalizeIotaDims).
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NoReturn

from hloscope.core.errors import ParseError
from hloscope.core.text.metadata_form import metadata_form
from hloscope.core.text.scan import match_bracket

if TYPE_CHECKING:
    from hloscope.core.text.tokens import Cursor

_SIMPLE = ("replicated", "maximal", "manual", "unknown", "unreduced")
_SUBGROUPS = ("maximal", "manual", "unreduced", "replicated")
# The order into which XLA sorts the kinds of trailing tile dimensions.
_SUBGROUP_ORDER = {"maximal": 0, "manual": 1, "unreduced": 2, "replicated": 3}


def sharding_form(at: Cursor) -> str:
    """One sharding in braces, or a tuple of them."""
    at.expect("{")
    if at.kind not in ("{", "}"):
        return _single(at)
    parts: list[str] = []
    if at.kind != "}":
        while True:
            at.expect("{")
            parts.append(_single(at))
            if not at.accept(","):
                break
    at.expect("}")
    return _tuple(parts)


def _tuple(parts: list[str]) -> str:
    return "{" + ", ".join((f"/*index={i}*/" if i and i % 5 == 0 else "") + p for i, p in enumerate(parts)) + "}"


def for_tuple(sharding: str, leaves: int) -> str:
    """A single sharding repeated for each leaf of a tuple shape; a tuple sharding stays as it is."""
    if sharding == "{}" or sharding.startswith("{{"):
        return sharding
    return _tuple([sharding] * max(leaves, 1))


# ---------------------------------------------------------------- one sharding
def _single(at: Cursor) -> str:
    # The opening brace is read already; reads the closing one.
    if at.kind == "word" and at.value in ("mesh", "maximal_mesh"):
        return _named(at)
    kinds: set[str] = set()
    devices: list[int] | None = None
    tiles: list[int] = []
    iota: tuple[list[int], list[int]] | None = None
    subgroups: list[str] = []
    replicate_last = False
    group = ""
    metadata: list[str] = []
    start = at.start
    while at.kind != "}":
        if at.kind == "word" and at.value in _SIMPLE:
            kinds.add(at.value)
            at.advance()
        elif at.kind == "word" and at.value == "last_tile_dim_replicate":
            replicate_last = True
            at.advance()
        elif at.kind == "word" and at.value in ("shard_as", "shard_like"):
            word = at.value
            at.advance()
            group = f" {word} {at.integer()}"
        elif at.kind == "key" and at.value == "device":
            at.advance()
            devices = [at.integer("a device number")]
        elif at.kind == "key" and at.value == "devices":
            at.advance()
            tiles, iota, listed = tile_assignment(at)
            devices = listed if listed is not None else devices
        elif at.kind == "key" and at.value == "metadata":
            at.advance()
            metadata = _metadata_list(at)
        elif at.kind == "key" and at.value == "last_tile_dims":
            at.advance()
            subgroups = at.items("{", "}", lambda: _subgroup(at))
        else:
            at.fail(f"expected an item of a sharding, got {at.glance()}")
    at.advance()
    tail = group + _written(metadata)
    for kind in _SIMPLE:
        if kind in kinds:
            if kind == "maximal":
                if devices is None or len(devices) != 1:
                    _refuse(start, "a maximal sharding has exactly one device")
                return f"{{maximal device={devices[0]}{tail}}}"
            if devices:
                _refuse(start, f"a {kind} sharding has no devices")
            return f"{{{kind}{tail}}}"
    if not tiles:
        _refuse(start, "a sharding that is not maximal has devices=[…]")
    if replicate_last:
        subgroups = [*subgroups, "replicated"]
    if iota is None and (devices is None or len(devices) <= 1):
        _refuse(start, "a sharding that is not maximal has more than one device")
    return _tiled(start, tiles, iota, devices or [], subgroups, tail)


def _refuse(start: int, message: str) -> NoReturn:
    raise ParseError(message, column=start + 1)


def _subgroup(at: Cursor) -> str:
    if at.kind != "word" or at.value not in _SUBGROUPS:
        at.fail(f"expected one of {', '.join(_SUBGROUPS)}, got {at.glance()}")
    word = at.value
    at.advance()
    return word


def _metadata_list(at: Cursor) -> list[str]:
    probe = type(at)(at.text, at.end)
    if at.kind == "{" and probe.kind == "{":
        return at.items("{", "}", lambda: metadata_form(at))
    return [metadata_form(at)]


def without_metadata(text: str) -> str:
    """A sharding as printed, without the metadata inside it."""
    parts: list[str] = []
    done = 0
    for found in _METADATA.finditer(text):
        if found[1] is None or found.start() < done:  # a string, or inside what was left out
            continue
        stop = match_bracket(text, found.end() - 1)
        if stop < 0:
            break
        parts.append(text[done : found.start()])
        done = stop
    return "".join([*parts, text[done:]])


_METADATA = re.compile(r'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|,? (metadata)=\{')


def _written(metadata: list[str]) -> str:
    if not metadata:
        return ""
    return " metadata=" + (metadata[0] if len(metadata) == 1 else "{" + ", ".join(metadata) + "}")


def _tiled(
    start: int,
    tiles: list[int],
    iota: tuple[list[int], list[int]] | None,
    devices: list[int],
    subgroups: list[str],
    tail: str,
) -> str:
    """A tiled sharding, trailing subgroup dimensions merged and sorted as XLA keeps them."""
    count = prod(tiles)
    if iota is None and count != len(devices):
        # The parser of jaxlib 0.10.2 does not compare: it drops what is too much and leaves the rest at 0.
        if not 0 <= count <= _MAX_DEVICES:
            _refuse(start, f"{len(devices)} devices do not fill the tile assignment of {count}")
        devices = [*devices[:count], *([0] * (count - len(devices)))]
    if count == 1 and len(subgroups) > len(tiles) and len(set(subgroups)) == 1:
        return f"{{{subgroups[0]}{tail}}}"
    if len(subgroups) > len(tiles):
        _refuse(start, "more trailing tile dimensions than tile dimensions")
    data = len(tiles) - len(subgroups)
    if subgroups and len(set(subgroups)) == 1 and prod(tiles[:data]) == 1 and subgroups[0] != "maximal":
        return f"{{{subgroups[0]}{tail}}}"
    if iota is not None and not _fits(iota, count):
        # Nor does it compare an iota with the tiles: such a sharding is kept as it stands.
        last = " last_tile_dims={" + ", ".join(subgroups) + "}" if subgroups else ""
        last = " last_tile_dim_replicate" if subgroups == ["replicated"] else last
        return f"{{devices={_assignment(tiles, iota, [])}{last}{tail}}}"
    if iota is not None:
        iota = canonical_iota(*iota)
    if subgroups:
        sizes = tiles[data:]
        trivial = any(size == 1 for size in sizes)
        present = [s for s, size in zip(subgroups, sizes, strict=True) if size != 1]
        ordered = sorted(set(present), key=lambda s: _SUBGROUP_ORDER[s])
        if trivial or len(present) != len(ordered) or present != ordered:
            if count > _MAX_DEVICES:
                _refuse(start, "too many devices")
            order = list(range(data))
            for kind in ordered:
                order += [data + i for i, s in enumerate(subgroups) if s == kind and sizes[i] != 1]
            order += [data + i for i, size in enumerate(sizes) if size == 1]
            merged = tiles[:data] + [
                prod(sizes[i] for i, s in enumerate(subgroups) if s == kind and sizes[i] != 1) for kind in ordered
            ]
            tiles, iota, devices = _transposed(tiles, iota, devices, order, merged)
        subgroups = ordered if trivial or len(present) != len(ordered) or present != ordered else subgroups
    last = ""
    if subgroups == ["replicated"]:
        if len(tiles) == 1 or tiles[-1] == count:
            return f"{{replicated{tail}}}"
        if tiles[-1] == 1:
            tiles = tiles[:-1]
        else:
            last = " last_tile_dim_replicate"
            iota, devices = _sorted_last(tiles, iota, devices)
    elif subgroups == ["manual"] and tiles[-1] == count:
        return f"{{manual{tail}}}"
    elif subgroups:
        last = " last_tile_dims={" + ", ".join(subgroups) + "}"
        if subgroups[-1] == "replicated":
            iota, devices = _sorted_last(tiles, iota, devices)
    return f"{{devices={_assignment(tiles, iota, devices)}{last}{tail}}}"


_MAX_DEVICES = 1 << 20


def _fits(iota: tuple[list[int], list[int]], count: int) -> bool:
    return prod(iota[0]) == count and sorted(iota[1]) == list(range(len(iota[0])))


def _sorted_groups(devices: list[int], size: int) -> list[int]:
    return [d for i in range(0, len(devices), size) for d in sorted(devices[i : i + size])]


def _sorted_last(
    tiles: list[int], iota: tuple[list[int], list[int]] | None, devices: list[int]
) -> tuple[tuple[list[int], list[int]] | None, list[int]]:
    """Devices, listed or as an iota, with those that hold the same data in ascending order."""
    group = tiles[-1]
    if iota is None:
        return None, _sorted_groups(devices, group)
    if iota[0][iota[1][-1]] == group or prod(tiles) > _MAX_DEVICES:
        return iota, devices
    ascending = _sorted_iota(*iota, group)
    if ascending is not None:
        return canonical_iota(*ascending), devices
    _, _, listed = _transposed(tiles, iota, [], list(range(len(tiles))), tiles, listed=True)
    return None, _sorted_groups(listed, group)


def _sorted_iota(dims: list[int], perm: list[int], group: int) -> tuple[list[int], list[int]] | None:
    """The iota with the devices of each group in ascending order, None where it is none any more.

    Source: ``openxla/xla:xla/hlo/ir/hlo_sharding.cc#GroupMinorIotaDimsSorted``.
    """
    dims, perm = list(dims), list(perm)
    grouped = 0
    for place in range(len(perm) - 1, -1, -1):
        dim = perm[place]
        if max(dims[dim], group) % min(dims[dim], group):
            return None
        grouped += 1
        if dims[dim] > group:  # its minor part belongs to the group
            perm = [p + 1 if p > dim else p for p in perm]
            perm.insert(place + 1, dim + 1)
            dims[dim : dim + 1] = [dims[dim] // group, group]
            break
        group //= dims[dim]
    return dims, [*perm[: len(perm) - grouped], *sorted(perm[len(perm) - grouped :])]


def _transposed(
    tiles: list[int],
    iota: tuple[list[int], list[int]] | None,
    devices: list[int],
    order: list[int],
    merged: list[int],
    *,
    listed: bool = False,
) -> tuple[list[int], tuple[list[int], list[int]] | None, list[int]]:
    moved = [i for i in order if tiles[i] != 1]
    if moved == sorted(moved) and iota is not None and not listed:
        return merged, iota, devices
    import numpy as np

    whole = np.arange(prod(tiles)) if iota is not None else np.array(devices, dtype=np.int64)
    if iota is not None:
        whole = whole.reshape(iota[0]).transpose(iota[1]).reshape(-1)
    moved = whole.reshape(tiles).transpose(order).reshape(-1)
    if iota is not None and not listed:
        # Where each tile dimension lies within one dimension of the iota, the result is an iota again.
        split = _split_iota(tiles, iota)
        if split is not None:
            dims, perm, owner = split
            places = [i for wanted in order for i, own in enumerate(owner) if own == wanted]
            return merged, canonical_iota(dims, [perm[i] for i in places]), []
    return merged, None, [int(d) for d in moved]


def _split_iota(
    tiles: list[int], iota: tuple[list[int], list[int]]
) -> tuple[list[int], list[int], list[int]] | None:
    """The iota with dimensions cut so that each belongs to one tile dimension; None where they do not nest."""
    dims, perm = iota
    pieces: list[list[int]] = [[] for _ in dims]
    sequence: list[tuple[int, int, int]] = []  # (iota dimension, size, tile dimension)
    wanted = [(i, t) for i, t in enumerate(tiles) if t != 1]
    at = 0
    left = wanted[0][1] if wanted else 1
    for source in perm:
        rest = dims[source]
        while rest > 1:
            if at >= len(wanted):
                return None
            size = min(rest, left)
            if rest % size or left % size:
                return None
            pieces[source].append(size)
            sequence.append((source, size, wanted[at][0]))
            rest //= size
            left //= size
            if left == 1:
                at += 1
                left = wanted[at][1] if at < len(wanted) else 1
    first: list[int] = []
    flat: list[int] = []
    for piece in pieces:
        first.append(len(flat))
        flat += piece
    used = [0] * len(dims)
    out_perm: list[int] = []
    owner: list[int] = []
    for source, _, tile in sequence:
        out_perm.append(first[source] + used[source])
        used[source] += 1
        owner.append(tile)
    return (flat or [1]), (out_perm or [0]), (owner or [0])


def _assignment(tiles: list[int], iota: tuple[list[int], list[int]] | None, devices: list[int]) -> str:
    head = "[" + ",".join(map(str, tiles)) + "]"
    if iota is None:
        return head + ",".join(map(str, devices))
    return head + "<=" + _iota_text(iota)


def _iota_text(iota: tuple[list[int], list[int]]) -> str:
    text = "[" + ",".join(map(str, iota[0])) + "]"
    return text + ("T(" + ",".join(map(str, iota[1])) + ")" if len(iota[0]) > 1 else "")


def canonical_iota(dims: list[int], perm: list[int]) -> tuple[list[int], list[int]]:
    """Reshape dimensions and permutation with size-1 dimensions dropped and runs merged."""
    dims, perm = list(dims), list(perm)
    while len(dims) > 1 or dims == [1]:
        kept = [i for i, d in enumerate(dims) if d != 1]
        place = {old: new for new, old in enumerate(kept)}
        dims, perm = [dims[i] for i in kept], [place[p] for p in perm if p in place]
        changed = False
        base = 0
        for i in range(1, len(dims)):
            if perm[base] + (i - base) == perm[i]:
                dims[perm[base]] *= dims[perm[i]]
                dims[perm[i]] = 1
                changed = True
            else:
                base = i
        if not changed:
            break
    return (dims, perm) if dims else ([1], [0])


# ---------------------------------------------------------------- tile assignments
def _iota_array(at: Cursor) -> tuple[list[int], list[int]]:
    dims = at.integers("[", "]")
    if not dims:
        at.fail("expected the sizes of the iota")
    if len(dims) == 1:
        return dims, [0]
    if at.kind != "word" or at.value != "T":
        at.fail(f"expected 'T(…)' after an iota of several dimensions, got {at.glance()}")
    at.advance()
    perm = at.integers("(", ")")
    if len(perm) != len(dims) or not all(0 <= p < len(dims) for p in perm):
        at.fail("the permutation of the iota does not fit its dimensions")
    return dims, perm


def tile_assignment(at: Cursor) -> tuple[list[int], tuple[list[int], list[int]] | None, list[int] | None]:
    """``[2,2]<=[4]`` or ``[2,2]0,1,2,3``: tile sizes, iota, listed devices."""
    tiles = at.integers("[", "]")
    if not tiles:
        at.fail("expected the sizes of the tile assignment")
    if at.accept("leq"):
        return tiles, _iota_array(at), None
    devices = [at.integer("a device number or '<='")]
    while at.accept(",", integers=True):
        devices.append(at.integer("a device number"))
    return tiles, None, devices


# ---------------------------------------------------------------- meshes
def _mesh(at: Cursor) -> tuple[str, list[str]]:
    """A mesh's text and its axis names."""
    kind = at.value
    at.advance()
    at.expect("[")
    if kind == "maximal_mesh":
        if at.kind != "key" or at.value != "device_id":
            at.fail(f"expected device_id=, got {at.glance()}")
        at.advance()
        device = at.integer()
        at.expect("]")
        return f"maximal_mesh[device_id={device}]", []
    names: list[str] = []
    sizes: list[int] = []
    if at.kind != "]":
        while True:
            names.append(at.string())
            at.expect("=")
            sizes.append(at.integer("the size of an axis"))
            if not at.accept(","):
                break
    at.expect("]")
    text = "mesh[" + ",".join(f"'{n}'={s}" for n, s in zip(names, sizes, strict=True)) + "]"
    if at.kind == "," and names:
        probe = type(at)(at.text, at.end)
        if probe.kind == "key" and probe.value == "device_ids":
            at.advance()
            at.advance()
            text += _device_ids(at, sizes)
    return text, names


def _device_ids(at: Cursor, sizes: list[int]) -> str:
    at.expect("(")
    if at.kind == "[":
        iota = _iota_array(at)
        at.expect(")")
        iota = canonical_iota(*iota)
        return "" if len(iota[0]) == 1 else f", device_ids=({_iota_text(iota)})"
    devices: list[int] = []
    if at.kind != ")":
        devices.append(at.integer())
        while at.accept(","):
            devices.append(at.integer())
    at.expect(")")
    if len(devices) != prod(sizes):
        at.fail(f"expected {prod(sizes)} device ids, got {len(devices)}")
    return f", device_ids=({','.join(map(str, devices))})"


def _axis(at: Cursor, names: list[str]) -> str:
    name = at.string()
    if name not in names:
        if not (name.isdigit() and int(name) < len(names)):
            at.fail(f"{name!r} is no axis of the mesh")
        name = names[int(name)]
    if not at.accept(":"):
        return f"'{name}'"
    at.expect("(")
    before = at.integer()
    at.expect(")")
    return f"'{name}':({before}){at.integer()}"


def _axes(at: Cursor, names: list[str]) -> list[str]:
    return at.items("{", "}", lambda: _axis(at, names))


def _dimension(at: Cursor, names: list[str]) -> str:
    closed = True

    def item() -> str:
        nonlocal closed
        if not closed:
            at.fail("an axis after '?'")
        if at.accept("?"):
            closed = False
            return "?"
        return _axis(at, names)

    return "{" + ", ".join(at.items("{", "}", item)) + "}"


def _named(at: Cursor) -> str:
    mesh, names = _mesh(at)
    if mesh.startswith("maximal_mesh"):
        tail = ", " + _named_metadata(at) if at.accept(",") else ""
        at.expect("}")
        return "{" + mesh + tail + "}"
    at.accept(",")
    if at.kind == "word" and at.value in ("replicated", "manual", "unreduced"):
        word = at.value
        at.advance()
        op = ""
        if word == "unreduced" and at.accept("="):
            op = _reduction(at)
        tail = ", " + _named_metadata(at) if at.accept(",") else ""
        at.expect("}")
        return "{" + f"{mesh}, {word}" + ("=" + op if op not in ("", "sum") else "") + tail + "}"
    parts = [mesh, "[" + ", ".join(at.items("[", "]", lambda: _dimension(at, names))) + "]"]
    found: dict[str, str] = {}
    whole: set[str] = set()  # kinds that take every axis
    while at.kind != "}":
        at.expect(",")
        if at.kind != "key" or at.value not in ("replicated", "unreduced", "manual", "metadata"):
            at.fail(f"expected replicated=, unreduced=, manual= or metadata=, got {at.glance()}")
        key = at.value
        if key == "metadata":
            found[key] = _named_metadata(at)
            continue
        at.advance()
        op = _reduction(at) if key == "unreduced" and at.stands("word") else ""
        axes = _axes(at, names)
        found[key] = f"{key}={'' if op == 'sum' else op}" + "{" + ", ".join(axes) + "}"
        if axes == [f"'{name}'" for name in names] and key != "replicated" and op in ("", "sum"):
            whole.add(key)
    at.advance()
    if parts[1] == "[]":  # of no dimension: a word says the same
        kinds = [key for key in found if key != "metadata" and not found[key].endswith("={}")]
        if not kinds or len(kinds) == 1 and kinds[0] in whole:
            parts[1] = kinds[0] if kinds else "replicated"
            found = {key: text for key, text in found.items() if key == "metadata"}
    parts += [found[k] for k in ("replicated", "unreduced", "manual", "metadata") if k in found]
    return "{" + ", ".join(p for p in parts if not p.endswith("={}")) + "}"


def _reduction(at: Cursor) -> str:
    if at.kind != "word" or at.value not in ("sum", "max", "min"):
        at.fail(f"expected sum, max or min, got {at.glance()}")
    word = at.value
    at.advance()
    return word


def _named_metadata(at: Cursor) -> str:
    if at.kind != "key" or at.value != "metadata":
        at.fail(f"expected metadata=, got {at.glance()}")
    at.advance()
    return "metadata={" + ", ".join(_metadata_list(at)) + "}"


# ---------------------------------------------------------------- device groups
def replica_groups_form(at: Cursor) -> str:
    """Groups listed in braces, an iota of groups, or the axes of a mesh."""
    if at.kind == "{":
        groups = at.items("{", "}", lambda: "{" + ",".join(map(str, at.integers())) + "}")
        return "{" + ",".join(groups) + "}"
    if at.kind == "word" and at.value in ("mesh", "maximal_mesh"):
        mesh, names = _mesh(at)
        return mesh + " {" + ",".join(_axes(at, names)) + "}"
    start = at.start
    if at.kind != "[":
        at.fail(f"expected device groups, got {at.glance()}")
    tiles, iota, _ = tile_assignment(at)
    if iota is None:
        _refuse(start, "device groups as a tile assignment are an iota (<=)")
    if len(tiles) != 2:
        _refuse(start, "device groups as an iota have two dimensions: groups and group size")
    return _assignment(tiles, canonical_iota(*iota), [])
