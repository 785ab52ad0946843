"""Writes random valid modules: the common forms, control flow, and what many programs have now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

Dims = tuple[int, ...]


@dataclass
class Body:
    """A computation that is being written."""

    name: str
    lines: list[str] = field(default_factory=list)
    pool: list[tuple[str, str, Dims]] = field(default_factory=list)
    """Name, element type and dimensions of the arrays so far."""


class Writer:
    """Writes a module; every choice is a number that `number` gives."""

    def __init__(self, number: Callable[[int, int], int]) -> None:
        self.number = number
        """A number between two others, both possible."""
        self.count = 0
        self.done: list[str] = []
        self.reducers: set[str] = set()
        self.alike = True
        """Whether all devices come here: not inside a branch."""

    def pick(self, items: list) -> object:  # type: ignore[type-arg]
        return items[self.number(0, len(items) - 1)]

    def flag(self) -> bool:
        return self.number(0, 1) == 1

    def subset(self, count: int) -> list[int]:
        """Some of the first numbers, at least one."""
        found = [n for n in range(count) if self.flag()]
        return found or [self.number(0, count - 1)]

    def permutation(self, count: int) -> list[int]:
        left = list(range(count))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]

    def dimensions(self, least: int) -> Dims:
        return tuple(self.number(1, 4) for _ in range(self.number(least, 3)))

    def text(self, kind: str, dims: Dims) -> str:
        layout = ",".join(str(d) for d in reversed(range(len(dims))))
        return f"{kind}[{','.join(map(str, dims))}]" + (f"{{{layout}}}" if dims else "")

    def add(self, body: Body, kind: str, dims: Dims, what: str) -> tuple[str, str, Dims]:
        self.count += 1
        name = f"v{self.count}"
        body.lines.append(f"  {name} = {self.text(kind, dims)} {what}")
        value = (name, kind, dims)
        body.pool.append(value)
        return value

    def some(self, body: Body, kinds: str = "f32 s32", rank: int | None = None) -> tuple[str, str, Dims] | None:
        fitting = [v for v in body.pool if v[1] in kinds.split() and (rank is None or len(v[2]) == rank)]
        return self.pick(fitting) if fitting else None  # type: ignore[return-value]

    def constant(self, body: Body, kind: str, value: int) -> str:
        return self.add(body, kind, (), f"constant({value})")[0]

    def reducer(self, kind: str, opcode: str) -> str:
        name = f"{opcode}_{kind}"
        if name not in self.reducers:
            self.reducers.add(name)
            self.done.append(
                f"{name} {{\n  x_{name} = {kind}[] parameter(0)\n  y_{name} = {kind}[] parameter(1)\n"
                f"  ROOT o_{name} = {kind}[] {opcode}(x_{name}, y_{name})\n}}\n"
            )
        return name

    # ------------------------------------------------------------ one instruction
    def step(self, body: Body, depth: int) -> None:
        forms = [
            self.binary, self.unary, self.with_constant, self.choose, self.spread, self.rearrange, self.cut, self.join,
            self.fold, self.product, self.move, self.numbers, self.convert, self.window, self.lookup,
            *[self.odd] * 6,
        ]  # fmt: skip
        if depth:
            forms += [self.loop, self.branch, self.call]
        chosen = self.pick(forms)
        chosen(body, depth) if chosen in (self.loop, self.branch, self.call) else chosen(body)  # type: ignore[operator]

    def binary(self, body: Body) -> None:
        a = self.some(body)
        if a is None:
            return
        b = self.pick([v for v in body.pool if v[1:] == a[1:]])
        opcode = self.pick("add subtract multiply maximum minimum".split())
        self.add(body, a[1], a[2], f"{opcode}({a[0]}, {b[0]})")  # type: ignore[index]

    def unary(self, body: Body) -> None:
        a = self.some(body)
        if a is not None:
            opcode = self.pick(["negate", "abs", "tanh", "logistic"] if a[1] == "f32" else ["negate", "abs", "sign"])
            self.add(body, a[1], a[2], f"{opcode}({a[0]})")

    def with_constant(self, body: Body) -> None:
        a = self.some(body)
        if a is None:
            return
        c = self.constant(body, a[1], self.number(-2, 4))
        if a[2]:
            c = self.add(body, a[1], a[2], f"broadcast({c}), dimensions={{}}")[0]
        sides = [a[0], c] if self.flag() else [c, a[0]]
        self.add(body, a[1], a[2], f"{self.pick('add subtract multiply maximum'.split())}({', '.join(sides)})")

    def choose(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is None:
            return
        b = self.pick([v for v in body.pool if v[1:] == a[1:]])
        way = self.pick("LT LE EQ NE GT GE".split())
        p = self.add(body, "pred", a[2], f"compare({a[0]}, {b[0]}), direction={way}")  # type: ignore[index]
        x = self.pick([v for v in body.pool if v[1] != "pred" and v[2] == a[2]])
        y = self.pick([v for v in body.pool if v[1:] == x[1:]])  # type: ignore[index]
        self.add(body, x[1], x[2], f"select({p[0]}, {x[0]}, {y[0]})")  # type: ignore[index]

    def spread(self, body: Body) -> None:
        a = self.some(body)
        if a is None or len(a[2]) > 2:
            return
        place = self.number(0, len(a[2]))
        dims = (*a[2][:place], self.number(1, 3), *a[2][place:])
        kept = ",".join(str(d) for d in range(len(dims)) if d != place)
        self.add(body, a[1], dims, f"broadcast({a[0]}), dimensions={{{kept}}}")

    def rearrange(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        way = self.pick(["reshape", "transpose", "reverse"])
        if way == "reshape":
            size = prod(a[2])
            first = self.pick([d for d in range(1, size + 1) if size % d == 0])
            dims = self.pick([(size,), (first, size // first), (first, 1, size // first), (1, size)])  # type: ignore[operator]
            self.add(body, a[1], dims, f"reshape({a[0]})")  # type: ignore[arg-type]
        elif way == "transpose":
            order = self.permutation(len(a[2]))
            dims = tuple(a[2][d] for d in order)
            self.add(body, a[1], dims, f"transpose({a[0]}), dimensions={{{','.join(map(str, order))}}}")
        else:
            self.add(body, a[1], a[2], f"reverse({a[0]}), dimensions={{{self.number(0, len(a[2]) - 1)}}}")

    def cut(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        if self.flag():
            bounds = [sorted((self.number(0, s - 1), s)) for s in a[2]]
            dims = tuple(b - x for x, b in bounds)
            inside = ", ".join(f"[{x}:{b}]" for x, b in bounds)
            self.add(body, a[1], dims, f"slice({a[0]}), slice={{{inside}}}")
            return
        value = self.constant(body, a[1], self.number(0, 1))
        edges = [(self.number(0, 1), self.number(0, 1)) for _ in a[2]]
        dims = tuple(s + x + y for s, (x, y) in zip(a[2], edges, strict=True))
        self.add(body, a[1], dims, f"pad({a[0]}, {value}), padding={'x'.join(f'{x}_{y}' for x, y in edges)}")

    def join(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        along = self.number(0, len(a[2]) - 1)
        rest = [s for d, s in enumerate(a[2]) if d != along]
        same = [v for v in body.pool if v[1] == a[1] and len(v[2]) == len(a[2])]
        fitting = [v for v in same if [s for d, s in enumerate(v[2]) if d != along] == rest]
        b = self.pick(fitting)
        dims = tuple(s + (b[2][along] if d == along else 0) for d, s in enumerate(a[2]))  # type: ignore[index]
        self.add(body, a[1], dims, f"concatenate({a[0]}, {b[0]}), dimensions={{{along}}}")  # type: ignore[index]

    def fold(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        opcode = self.pick(["add", "maximum"])
        start = self.constant(body, a[1], 0) if opcode == "add" else self.constant(body, a[1], -100)
        gone = self.subset(len(a[2]))
        dims = tuple(s for d, s in enumerate(a[2]) if d not in gone)
        to = self.reducer(a[1], str(opcode))
        where = ",".join(map(str, gone))
        self.add(body, a[1], dims, f"reduce({a[0]}, {start}), dimensions={{{where}}}, to_apply={to}")

    def product(self, body: Body) -> None:
        a = self.some(body, "f32")
        if a is None or not a[2]:
            return
        along = self.number(0, len(a[2]) - 1)
        fitting = [(v, d) for v in body.pool if v[1] == "f32" for d, s in enumerate(v[2]) if s == a[2][along]]
        b, other = self.pick(fitting)  # type: ignore[misc]
        dims = tuple(s for d, s in enumerate(a[2]) if d != along) + tuple(s for d, s in enumerate(b[2]) if d != other)
        if len(dims) <= 4:
            self.add(
                body, "f32", dims,
                f"dot({a[0]}, {b[0]}), lhs_contracting_dims={{{along}}}, rhs_contracting_dims={{{other}}}",
            )  # fmt: skip

    def move(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        starts = []
        for _ in a[2]:
            at = self.some(body, "s32", 0)
            starts.append(at[0] if at is not None else self.constant(body, "s32", self.number(-1, 3)))
        sizes = tuple(self.number(1, s) for s in a[2])
        where = ",".join(map(str, sizes))
        piece = self.add(
            body, a[1], sizes, f"dynamic-slice({a[0]}, {', '.join(starts)}), dynamic_slice_sizes={{{where}}}"
        )
        if self.flag():
            self.add(body, a[1], a[2], f"dynamic-update-slice({a[0]}, {piece[0]}, {', '.join(starts)})")

    def numbers(self, body: Body) -> None:
        if self.flag():
            dims = self.dimensions(1)
            along = self.number(0, len(dims) - 1)
            self.add(body, "s32", dims, f"iota(), iota_dimension={along}")
        else:
            values = [self.number(-2, 3) for _ in range(self.number(1, 5))]
            inside = ", ".join(map(str, values))
            self.add(body, str(self.pick(["f32", "s32"])), (len(values),), f"constant({{{inside}}})")

    def convert(self, body: Body) -> None:
        a = self.some(body, "s32 pred")
        if a is not None:
            self.add(body, "f32" if a[1] == "s32" else str(self.pick(["s32", "f32"])), a[2], f"convert({a[0]})")

    def window(self, body: Body) -> None:
        a = self.some(body, rank=1)
        if a is None:
            return
        (n,) = a[2]
        start = self.constant(body, a[1], 0)
        size, scan = (n, self.flag()) if n > 1 else (1, False)
        dims = (n,) if scan else (n - size + 1,)
        pad = f" pad={size - 1}_0" if scan else ""
        to = self.reducer(a[1], "add")
        self.add(body, a[1], dims, f"reduce-window({a[0]}, {start}), window={{size={size}{pad}}}, to_apply={to}")

    def lookup(self, body: Body) -> None:
        a, i = self.some(body), self.some(body, "s32", 1)
        if a is None or i is None or not a[2]:
            return
        n, sizes = i[2][0], (1, *a[2][1:])
        offset = ",".join(str(d) for d in range(1, len(a[2])))
        where = ",".join(map(str, sizes))
        found = self.add(
            body, a[1], (n, *a[2][1:]),
            f"gather({a[0]}, {i[0]}), offset_dims={{{offset}}}, collapsed_slice_dims={{0}}, start_index_map={{0}},"
            f" index_vector_dim=1, slice_sizes={{{where}}}",
        )  # fmt: skip
        if self.flag():
            to = self.reducer(a[1], "add")
            self.add(
                body, a[1], a[2],
                f"scatter({a[0]}, {i[0]}, {found[0]}), update_window_dims={{{offset}}}, inserted_window_dims={{0}},"
                f" scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={to}",
            )  # fmt: skip

    # ------------------------------------------------------------ what is met less often
    def odd(self, body: Body) -> None:
        forms = [
            self.bits, self.integers, self.floats, self.narrow, self.clamped, self.sorted, self.mapped, self.extreme,
            self.convolved, self.selected, self.complex, self.barrier, self.largest, *[self.rare] * 8,
        ]  # fmt: skip
        self.pick(forms)(body)  # type: ignore[operator]

    def rare(self, body: Body) -> None:
        """What one module in many has."""
        raise NotImplementedError

    def bits(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is None:
            return
        b = self.pick([v for v in body.pool if v[1:] == a[1:]])
        opcode = self.pick("and or xor shift-left shift-right-logical shift-right-arithmetic".split())
        self.add(body, "s32", a[2], f"{opcode}({a[0]}, {b[0]})")  # type: ignore[index]
        self.add(body, "s32", a[2], f"{self.pick(['not', 'popcnt', 'count-leading-zeros'])}({a[0]})")

    def integers(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is None:
            return
        c = self.constant(body, "s32", self.pick([1, 2, 3, 4, 8, -2]))  # type: ignore[arg-type]
        if a[2]:
            c = self.add(body, "s32", a[2], f"broadcast({c}), dimensions={{}}")[0]
        self.add(body, "s32", a[2], f"{self.pick(['divide', 'remainder'])}({a[0]}, {c})")

    def floats(self, body: Body) -> None:
        a = self.some(body, "f32")
        if a is None:
            return
        bounded = self.add(body, "f32", a[2], f"tanh({a[0]})")[0]
        opcode = self.pick("exponential cosine sine floor ceil round-nearest-even sign cbrt erf exponential-minus-one "
                           "tan atan2 is-finite reduce-precision power".split())  # fmt: skip
        if opcode == "is-finite":
            self.add(body, "pred", a[2], f"is-finite({bounded})")
        elif opcode == "reduce-precision":
            self.add(body, "f32", a[2], f"reduce-precision({bounded}), exponent_bits=8, mantissa_bits=23")
        elif opcode == "atan2":
            self.add(body, "f32", a[2], f"atan2({bounded}, {a[0]})")
        elif opcode == "power":
            c = self.constant(body, "f32", self.number(0, 3))
            if a[2]:
                c = self.add(body, "f32", a[2], f"broadcast({c}), dimensions={{}}")[0]
            self.add(body, "f32", a[2], f"power({bounded}, {c})")
        else:
            self.add(body, "f32", a[2], f"{opcode}({bounded})")

    def narrow(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is None:
            return
        kind = str(self.pick("s8 u8 s16 u16 u32 s64 u64 f64".split()))
        b = self.add(body, kind, a[2], f"convert({a[0]})")[0]
        c = self.add(body, kind, a[2], f"{self.pick(['add', 'multiply', 'maximum', 'subtract'])}({b}, {b})")[0]
        self.add(body, "s32", a[2], f"convert({c})")

    def clamped(self, body: Body) -> None:
        a = self.some(body)
        if a is not None:
            low, high = self.constant(body, a[1], -1), self.constant(body, a[1], 2)
            self.add(body, a[1], a[2], f"clamp({low}, {a[0]}, {high})")

    def sorted(self, body: Body) -> None:
        a = self.some(body)
        if a is None or not a[2]:
            return
        along = self.number(0, len(a[2]) - 1)
        place = self.add(body, "s32", a[2], f"iota(), iota_dimension={along}")[0]
        name = f"less_{a[1]}"
        if name not in self.reducers:
            self.reducers.add(name)
            self.done.append(
                f"{name} {{\n  a_{name} = {a[1]}[] parameter(0)\n  b_{name} = {a[1]}[] parameter(1)\n"
                f"  c_{name} = s32[] parameter(2)\n  d_{name} = s32[] parameter(3)\n"
                f"  ROOT o_{name} = pred[] compare(a_{name}, b_{name}), direction=LT\n}}\n"
            )
        self.count += 1
        both = f"v{self.count}"
        shape = f"({self.text(a[1], a[2])}, {self.text('s32', a[2])})"
        body.lines.append(
            f"  {both} = {shape} sort({a[0]}, {place}), dimensions={{{along}}}, is_stable=true, to_apply={name}"
        )
        self.add(body, a[1], a[2], f"get-tuple-element({both}), index=0")
        if self.flag():
            self.add(body, "s32", a[2], f"get-tuple-element({both}), index=1")

    def mapped(self, body: Body) -> None:
        a = self.some(body)
        if a is not None and a[2]:
            dims = ",".join(map(str, range(len(a[2]))))
            to = self.reducer(a[1], str(self.pick(["add", "maximum"])))
            self.add(body, a[1], a[2], f"map({a[0]}, {a[0]}), dimensions={{{dims}}}, to_apply={to}")

    def extreme(self, body: Body) -> None:
        """A running or sliding maximum over two dimensions."""
        a = self.some(body, rank=2)
        if a is None:
            return
        low = self.constant(body, a[1], -100)
        to = self.reducer(a[1], "maximum")
        size = ",".join(str(min(s, 2)) for s in a[2])
        dims = tuple(s - min(s, 2) + 1 for s in a[2])
        sizes = size.replace(",", "x")
        self.add(body, a[1], dims, f"reduce-window({a[0]}, {low}), window={{size={sizes}}}, to_apply={to}")

    def convolved(self, body: Body) -> None:
        a = self.some(body, "f32", 1)
        if a is None:
            return
        (n,) = a[2]
        x = self.add(body, "f32", (1, n, 1), f"reshape({a[0]})")[0]
        k = self.add(body, "f32", (n, 1, 1), f"reshape({a[0]})")[0]
        self.add(
            body, "f32", (1, n, 1),
            f"convolution({x}, {k}), window={{size={n} pad={n - 1}_0}}, dim_labels=b0f_0io->b0f",
        )  # fmt: skip

    def selected(self, body: Body) -> None:
        a = self.some(body, "f32", 1)
        if a is None or a[2][0] < 2:
            return
        (n,) = a[2]
        part = self.add(body, "f32", (n - 1,), f"slice({a[0]}), slice={{[1:{n}]}}")[0]
        zero = self.constant(body, "f32", 0)
        name = "not_less"
        if name not in self.reducers:
            self.reducers.add(name)
            self.done.append(
                "not_less {\n  a_not_less = f32[] parameter(0)\n  b_not_less = f32[] parameter(1)\n"
                "  ROOT o_not_less = pred[] compare(a_not_less, b_not_less), direction=GE\n}\n"
            )
        to = self.reducer("f32", "add")
        self.add(
            body, "f32", (n,),
            f"select-and-scatter({a[0]}, {part}, {zero}), window={{size=2}}, select=not_less, scatter={to}",
        )  # fmt: skip

    def complex(self, body: Body) -> None:
        a = self.some(body, "f32")
        if a is None:
            return
        b = self.pick([v for v in body.pool if v[1:] == a[1:]])
        z = self.add(body, "c64", a[2], f"complex({a[0]}, {b[0]})")[0]  # type: ignore[index]
        w = self.add(body, "c64", a[2], f"{self.pick(['add', 'multiply', 'subtract'])}({z}, {z})")[0]
        self.add(body, "f32", a[2], f"{self.pick(['real', 'imag'])}({w})")

    def barrier(self, body: Body) -> None:
        a, b = self.some(body), self.some(body)
        if a is not None and b is not None:
            self.finish(body, [a, b], [a[1:], b[1:]], "opt-barrier(START)")

    def largest(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is None or not a[2]:
            return
        along = self.number(0, len(a[2]) - 1)
        place = self.add(body, "s32", a[2], f"iota(), iota_dimension={along}")[0]
        low, zero = self.constant(body, "s32", -1000), self.constant(body, "s32", 0)
        name = "arg_largest"
        if name not in self.reducers:
            self.reducers.add(name)
            self.done.append(
                "arg_largest {\n  a_v = s32[] parameter(0)\n  a_i = s32[] parameter(1)\n  b_v = s32[] parameter(2)\n"
                "  b_i = s32[] parameter(3)\n  a_c = pred[] compare(a_v, b_v), direction=GE\n"
                "  a_s = s32[] select(a_c, a_v, b_v)\n  a_t = s32[] select(a_c, a_i, b_i)\n"
                "  ROOT a_o = (s32[], s32[]) tuple(a_s, a_t)\n}\n"
            )
        dims = tuple(s for d, s in enumerate(a[2]) if d != along)
        self.count += 1
        both = f"v{self.count}"
        body.lines.append(
            f"  {both} = ({self.text('s32', dims)}, {self.text('s32', dims)}) reduce({a[0]}, {place}, {low}, {zero}),"
            f" dimensions={{{along}}}, to_apply=arg_largest"
        )
        self.add(body, "s32", dims, f"get-tuple-element({both}), index={self.number(0, 1)}")

    # ------------------------------------------------------------ computations
    def inner(self, name: str, state: list[tuple[str, str, Dims]], depth: int, steps: int) -> Body:
        """A computation that takes a tuple of arrays apart and does some steps."""
        body = Body(name)
        shape = "(" + ", ".join(self.text(k, d) for _, k, d in state) + ")"
        self.count += 1
        whole = f"p{self.count}"
        body.lines.append(f"  {whole} = {shape} parameter(0)")
        for number, (_, kind, dims) in enumerate(state):
            self.add(body, kind, dims, f"get-tuple-element({whole}), index={number}")
        for _ in range(steps):
            self.step(body, depth)
        return body

    def close(self, body: Body, parts: list[str], shapes: list[tuple[str, Dims]]) -> None:
        self.count += 1
        shape = "(" + ", ".join(self.text(k, d) for k, d in shapes) + ")"
        body.lines.append(f"  ROOT t{self.count} = {shape} tuple({', '.join(parts)})")
        self.done.append(f"{body.name} {{\n" + "\n".join(body.lines) + "\n}\n")

    def some_values(self, body: Body, most: int) -> list[tuple[str, str, Dims]]:
        plain = [v for v in body.pool if v[1] != "pred"]
        return [self.pick(plain) for _ in range(self.number(1, most))] if plain else []  # type: ignore[misc]

    def loop(self, body: Body, depth: int) -> None:
        zero = self.add(body, "s32", (), "constant(0)")
        state = [zero, *self.some_values(body, 3)]
        shapes = [(k, d) for _, k, d in state]
        trips = self.number(0, 3)
        number = self.count
        test = self.inner(f"condition{number}", state, 0, 0)
        bound = self.constant(test, "s32", trips)
        self.count += 1
        test.lines.append(f"  ROOT o{self.count} = pred[] compare({test.pool[0][0]}, {bound}), direction=LT")
        self.done.append(f"{test.name} {{\n" + "\n".join(test.lines) + "\n}\n")
        inside = self.inner(f"body{number}", state, depth - 1, self.number(1, 4))
        step = self.constant(inside, "s32", 1)
        following = [self.add(inside, "s32", (), f"add({inside.pool[0][0]}, {step})")[0]]
        for place, (_, kind, dims) in enumerate(state[1:], start=1):
            fitting = [v for v in inside.pool if v[1:] == (kind, dims)]
            following.append(self.pick([inside.pool[place], *fitting])[0])  # type: ignore[index]
        self.close(inside, following, shapes)
        self.finish(body, state, shapes, f"while(START), condition=condition{number}, body=body{number}")

    def finish(self, body: Body, state: list[tuple[str, str, Dims]], shapes: list[tuple[str, Dims]], what: str) -> None:
        self.count += 2
        shape = "(" + ", ".join(self.text(k, d) for k, d in shapes) + ")"
        start, whole = f"s{self.count}", f"w{self.count}"
        body.lines.append(f"  {start} = {shape} tuple({', '.join(v[0] for v in state)})")
        body.lines.append(f"  {whole} = {shape} {what.replace('START', start)}")
        for number, (kind, dims) in enumerate(shapes):
            if self.flag() or number == len(shapes) - 1:
                self.add(body, kind, dims, f"get-tuple-element({whole}), index={number}")

    def branch(self, body: Body, depth: int) -> None:
        at = self.some(body, "s32", 0)
        state = self.some_values(body, 2)
        if at is None or not state:
            return
        zero = self.constant(body, "s32", 0)
        p = self.add(body, "pred", (), f"compare({at[0]}, {zero}), direction=GT")
        shapes = [(k, d) for _, k, d in state]
        number = self.count
        before, self.alike = self.alike, False
        for side in ("yes", "no"):
            inside = self.inner(f"{side}{number}", state, depth - 1, self.number(0, 3))
            parts = [str(self.pick([v for v in inside.pool if v[1:] == s])[0]) for s in shapes]  # type: ignore[index]
            self.close(inside, parts, shapes)
        self.alike = before
        self.finish(
            body, state, shapes,
            f"conditional({p[0]}, START, START), true_computation=yes{number}, false_computation=no{number}",
        )  # fmt: skip

    def call(self, body: Body, depth: int) -> None:
        state = self.some_values(body, 2)
        if not state:
            return
        shapes = [(k, d) for _, k, d in state]
        number = self.count
        inside = self.inner(f"called{number}", state, depth - 1, self.number(1, 3))
        parts = [str(self.pick([v for v in inside.pool if v[1:] == s])[0]) for s in shapes]  # type: ignore[index]
        self.close(inside, parts, shapes)
        for _ in range(self.number(1, 2)):
            self.finish(body, state, shapes, f"call(START), to_apply=called{number}")
