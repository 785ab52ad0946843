"""Random valid modules with every opcode: what the common writer leaves to this one, and the strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from tests.core.passes.module_writer import Body, Dims, Writer

NOT_MADE = {
    "bitcast": "has no meaning before layouts are assigned, which is where these modules begin",
    "infeed": "gives what a host program hands in, and there is none",
    "outfeed": "gives to a host program, and there is none",
}
"""Opcodes that no random module has, and why."""

_UNARY = "sinh cosh asinh acos asin atanh round-nearest-afz".split()
_POSITIVE = "log log-plus-one sqrt rsqrt".split()
_PAIRS = "{{0,1},{1,0}}"
_SEND = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'


class RareWriter(Writer):
    """The writer with all forms."""

    def __init__(self, number: Callable[[int, int], int]) -> None:
        super().__init__(number)
        self.devices = False
        """Whether some instruction is about other devices; the module then runs on two."""

    def rare(self, body: Body) -> None:
        """One of the rare forms."""
        getattr(self, str(self.pick(list(RARE if self.alike else ALONE))))(body)

    # ------------------------------------------------------------ parts
    def raw(self, body: Body, shape: str, what: str) -> str:
        """An instruction that others may not read: a tuple, a token, another type."""
        self.count += 1
        body.lines.append(f"  v{self.count} = {shape} {what}")
        return f"v{self.count}"

    def filled(self, body: Body, kind: str, dims: Dims, value: float) -> str:
        """A scalar everywhere."""
        scalar = self.raw(body, f"{kind}[]", f"constant({value})")
        return self.raw(body, self.text(kind, dims), f"broadcast({scalar}), dimensions={{}}") if dims else scalar

    def half(self, body: Body, rank: int | None = None) -> tuple[str, Dims]:
        """Numbers between -0.5 and 0.5."""
        a = self.some(body, "f32", rank)
        if a is None:
            dims = self.dimensions(1) if rank is None else tuple(self.number(1, 4) for _ in range(rank))
            return self.filled(body, "f32", dims, 0.25), dims
        bounded = self.raw(body, self.text("f32", a[2]), f"tanh({a[0]})")
        factor = self.filled(body, "f32", a[2], 0.5)
        return self.raw(body, self.text("f32", a[2]), f"multiply({bounded}, {factor})"), a[2]

    def positive(self, body: Body, dims: Dims, x: str) -> str:
        return self.raw(body, self.text("f32", dims), f"exponential({x})")

    def identity(self, body: Body, n: int, value: float) -> str:
        """A multiple of the identity matrix."""
        shape = f"[{n},{n}]{{1,0}}"
        rows = self.raw(body, f"s32{shape}", "iota(), iota_dimension=0")
        columns = self.raw(body, f"s32{shape}", "iota(), iota_dimension=1")
        same = self.raw(body, f"pred{shape}", f"compare({rows}, {columns}), direction=EQ")
        yes, no = self.filled(body, "f32", (n, n), value), self.filled(body, "f32", (n, n), 0)
        return self.raw(body, f"f32{shape}", f"select({same}, {yes}, {no})")

    def square(self, body: Body) -> tuple[str, int]:
        """A small square matrix of small numbers."""
        x, dims = self.half(body)
        n = self.number(1, 3)
        size = 1
        for one in dims:
            size *= one
        flat = self.raw(body, self.text("f32", (size,)), f"reshape({x})")
        zero = self.raw(body, "f32[]", "constant(0.125)")
        room = self.raw(body, f"f32[{n * n}]{{0}}", f"pad({flat}, {zero}), padding=0_{n * n - size}")
        return self.raw(body, f"f32[{n},{n}]{{1,0}}", f"reshape({room})"), n

    def words(self, body: Body, n: int) -> str:
        """A state of a generator."""
        return self.raw(body, f"u64[{n}]{{0}}", "constant({" + ", ".join(str(7 + i) for i in range(n)) + "})")

    # ------------------------------------------------------------ elementwise
    def curve(self, body: Body) -> None:
        x, dims = self.half(body)
        opcode = str(self.pick([*_UNARY, *_POSITIVE, "acosh"]))
        if opcode in _POSITIVE:
            x = self.positive(body, dims, x)
        elif opcode == "acosh":
            up, one = self.positive(body, dims, x), self.filled(body, "f32", dims, 1)
            x = self.raw(body, self.text("f32", dims), f"add({up}, {one})")
        self.add(body, "f32", dims, f"{opcode}({x})")

    def bytes(self, body: Body) -> None:
        a = self.some(body, "f32")
        if a is None:
            return
        way = self.pick(["there and back", "wider", "copy"])
        if way == "there and back":
            bits = self.raw(body, self.text("s32", a[2]), f"bitcast-convert({a[0]})")
            self.add(body, "f32", a[2], f"bitcast-convert({bits})")
        elif way == "wider":
            bits = self.raw(body, self.text("u16", (*a[2], 2)), f"bitcast-convert({a[0]})")
            self.add(body, "f32", a[2], f"bitcast-convert({bits})")
        else:
            self.add(body, "f32", a[2], f"copy({a[0]})")

    def high(self, body: Body) -> None:
        a = self.some(body, "s32")
        if a is not None:
            b = self.pick([v for v in body.pool if v[1:] == a[1:]])
            self.add(body, "s32", a[2], f"mulhi({a[0]}, {b[0]})")  # type: ignore[index]

    def rounded(self, body: Body) -> None:
        x, dims = self.half(body)
        large = self.raw(body, self.text("f32", dims), f"multiply({x}, {self.filled(body, 'f32', dims, 16)})")
        odds = self.filled(body, "u32", dims, self.number(0, 4000000000))
        small = self.raw(body, self.text("s8", dims), f"stochastic-convert({large}, {odds})")
        self.add(body, "s32", dims, f"convert({small})")

    # ------------------------------------------------------------ random numbers
    def random(self, body: Body) -> None:
        dims = self.dimensions(0)
        low, up = self.raw(body, "f32[]", "constant(0)"), self.raw(body, "f32[]", "constant(1)")
        way = self.pick(["rng_uniform", "rng_normal", "state"])
        # What is random itself is taken away again, since no two runs agree in it.
        if way == "rng_uniform":
            x = self.raw(body, self.text("f32", dims), f"rng({low}, {up}), distribution=rng_uniform")
            self.add(body, "f32", dims, f"floor({x})")
        elif way == "rng_normal":
            x = self.raw(body, self.text("f32", dims), f"rng({low}, {up}), distribution=rng_normal")
            self.add(body, "f32", dims, f"multiply({x}, {self.filled(body, 'f32', dims, 0)})")
        else:
            state = self.raw(body, "u64[2]{0}", "rng-get-and-update-state(), delta=1")
            gone = self.raw(body, "u64[2]{0}", f"and({state}, {self.filled(body, 'u64', (2,), 0)})")
            self.add(body, "s32", (2,), f"convert({gone})")

    def generated(self, body: Body) -> None:
        way = self.pick(["rng_three_fry", "rng_philox"])
        n = 3 if way == "rng_philox" else 2
        dims = self.dimensions(1)
        both = self.raw(
            body, f"(u64[{n}]{{0}}, {self.text('u32', dims)})",
            f"rng-bit-generator({self.words(body, n)}), algorithm={way}",
        )  # fmt: skip
        bits = self.raw(body, self.text("u32", dims), f"get-tuple-element({both}), index=1")
        self.add(body, "s32", dims, f"convert({bits})")

    # ------------------------------------------------------------ linear algebra
    def factor(self, body: Body) -> None:
        x, n = self.square(body)
        shape = f"f32[{n},{n}]{{1,0}}"
        product = self.raw(body, shape, f"dot({x}, {x}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}")
        definite = self.raw(body, shape, f"add({product}, {self.identity(body, n, 2)})")
        lower = self.raw(body, shape, f"cholesky({definite}), lower={'true' if self.flag() else 'false'}")
        self.add(body, "f32", (n, n), f"copy({lower})")

    def solve(self, body: Body) -> None:
        x, n = self.square(body)
        shape = f"f32[{n},{n}]{{1,0}}"
        a = self.raw(body, shape, f"add({x}, {self.identity(body, n, 2)})")
        words = ", ".join(f"{key}={'true' if self.flag() else 'false'}" for key in ("left_side", "lower"))
        turned = self.pick(["NO_TRANSPOSE", "TRANSPOSE"])
        self.add(body, "f32", (n, n), f"triangular-solve({a}, {x}), {words}, transpose_a={turned}")

    def transform(self, body: Body) -> None:
        x, dims = self.half(body, 1)
        (n,) = dims
        if self.flag():
            there = self.raw(body, f"c64[{n // 2 + 1}]{{0}}", f"fft({x}), fft_type=RFFT, fft_length={{{n}}}")
            self.add(body, "f32", dims, f"fft({there}), fft_type=IRFFT, fft_length={{{n}}}")
        else:
            z = self.raw(body, f"c64[{n}]{{0}}", f"complex({x}, {x})")
            way = self.pick(["FFT", "IFFT"])
            there = self.raw(body, f"c64[{n}]{{0}}", f"fft({z}), fft_type={way}, fft_length={{{n}}}")
            self.add(body, "f32", dims, f"{self.pick(['real', 'imag'])}({there})")

    def normalized(self, body: Body) -> None:
        x, dims = self.half(body, 2)
        at = self.number(0, 1)
        features = (dims[at],)
        scale = self.filled(body, "f32", features, 1.5)
        offset = self.filled(body, "f32", features, 0.25)
        mean, variance = self.filled(body, "f32", features, 0.1), self.filled(body, "f32", features, 0.7)
        more = f"epsilon=0.01, feature_index={at}"
        vector = self.text("f32", features)
        shape = f"({self.text('f32', dims)}, {vector}, {vector})"
        way = self.pick(["training", "inference", "grad"])
        if way == "inference":
            self.add(body, "f32", dims, f"batch-norm-inference({x}, {scale}, {offset}, {mean}, {variance}), {more}")
            return
        operands = f"{x}, {scale}, {offset}" if way == "training" else f"{x}, {scale}, {mean}, {variance}, {x}"
        all_three = self.raw(body, shape, f"batch-norm-{way}({operands}), {more}")
        self.add(body, "f32", dims, f"get-tuple-element({all_three}), index=0")
        self.add(body, "f32", features, f"get-tuple-element({all_three}), index={self.number(1, 2)}")

    def ragged(self, body: Body) -> None:
        x, dims = self.half(body, 2)
        m, k = dims
        groups = self.number(1, 2)
        y = self.filled(body, "f32", (groups, k, 2), 0.75)
        first = self.number(0, m)
        counts = ", ".join(map(str, (first, m - first)[:groups]))
        sizes = self.raw(body, f"s32[{groups}]{{0}}", f"constant({{{counts}}})")
        self.add(
            body, "f32", (m, 2),
            f"ragged-dot({x}, {y}, {sizes}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}},"
            " lhs_ragged_dims={0}, rhs_group_dims={0}",
        )  # fmt: skip

    def scaled(self, body: Body) -> None:
        m, n = self.number(1, 3), self.number(1, 3)
        a, b = (self.filled(body, "f8e4m3fn", (size, 64), 0.5) for size in (m, n))
        s, t = (self.filled(body, "f8e8m0fnu", (size, 2), 2) for size in (m, n))
        self.add(
            body, "f32", (m, n),
            f"scaled-dot({a}, {b}, {s}, {t}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
        )  # fmt: skip

    def best(self, body: Body) -> None:
        a = self.some(body, "f32", 1)
        if a is None:
            return
        k = self.number(1, a[2][0])
        largest = "true" if self.flag() else "false"
        both = self.raw(body, f"(f32[{k}]{{0}}, s32[{k}]{{0}})", f"topk({a[0]}), k={k}, largest={largest}")
        self.add(body, "f32", (k,), f"get-tuple-element({both}), index=0")

    def scanned(self, body: Body) -> None:
        x, dims = self.half(body, 1)
        name = "scan_step"
        if name not in self.reducers:
            self.reducers.add(name)
            self.done.append(
                "scan_step {\n  x_scan = f32[] parameter(0)\n  c_scan = f32[] parameter(1)\n"
                "  s_scan = f32[] add(x_scan, c_scan)\n  m_scan = f32[] multiply(s_scan, x_scan)\n"
                "  ROOT o_scan = (f32[], f32[]) tuple(m_scan, s_scan)\n}\n"
            )
        start = self.raw(body, "f32[]", "constant(0)")
        turned = ", is_reverse=true" if self.flag() else ""
        both = self.raw(
            body, f"({self.text('f32', dims)}, f32[])",
            f"scan({x}, {start}), dimensions={{0}}{turned}, num_carries=1, to_apply=scan_step",
        )  # fmt: skip
        self.add(body, "f32", dims, f"get-tuple-element({both}), index=0")
        self.add(body, "f32", (), f"get-tuple-element({both}), index=1")

    # ------------------------------------------------------------ sizes at run time
    def dynamic(self, body: Body) -> None:
        a = self.some(body, "f32", 1)
        if a is None:
            return
        (n,) = a[2]
        size = self.raw(body, "s32[]", f"constant({self.number(0, n)})")
        part = self.raw(body, f"f32[<={n}]{{0}}", f"set-dimension-size({a[0]}, {size}), dimensions={{0}}")
        self.add(body, "s32", (), f"get-dimension-size({part}), dimensions={{0}}")
        if self.flag():
            part = self.raw(body, f"f32[<={n}]{{0}}", f"dynamic-reshape({part}, {size})")
        zero, to = self.raw(body, "f32[]", "constant(0)"), self.reducer("f32", "add")
        self.add(body, "f32", (), f"reduce({part}, {zero}), dimensions={{0}}, to_apply={to}")

    # ------------------------------------------------------------ order, marks, bodies
    def token(self, body: Body) -> None:
        a = self.some(body)
        if a is not None:
            token = self.raw(body, "token[]", "after-all()")
            if self.flag():
                token = self.raw(body, "token[]", f"after-all({token}, {token})")
            self.add(body, a[1], a[2], f"add-dependency({a[0]}, {token})")

    def marked(self, body: Body) -> None:
        a = self.some(body)
        if a is not None and self.flag():
            self.add(
                body, a[1], a[2],
                f'domain({a[0]}), domain={{kind="sharding", entry={{replicated}}, exit={{replicated}}}}',
            )  # fmt: skip
        elif a is not None:
            self.add(body, a[1], a[2], f'custom-call({a[0]}), custom_call_target="Sharding", sharding={{replicated}}')

    def kernel(self, body: Body, head: str = "fused") -> tuple[str, str, str] | None:
        """A computation of its own; its name, its operand and the operand's shape."""
        a = self.some(body, "f32")
        if a is None:
            return None
        self.count += 1
        name = f"{head}{self.count}"
        shape = self.text("f32", a[2])
        x, y = f"x_{name}", f"y_{name}"
        opcode = self.pick(["negate", "tanh", "abs"])
        self.done.append(
            f"{name} {{\n  {x} = {shape} parameter(0)\n  {y} = {shape} {opcode}({x})\n"
            f"  ROOT o_{name} = {shape} add({x}, {y})\n}}\n"
        )
        return name, a[0], shape

    def fused(self, body: Body) -> None:
        made = self.kernel(body)
        if made is not None:
            name, x, shape = made
            value = self.raw(body, shape, f"fusion({x}), kind=kLoop, calls={name}")
            self.pooled(body, value, shape)

    def pooled(self, body: Body, name: str, shape: str) -> None:
        """Let others read an f32 array."""
        inside = shape[shape.index("[") + 1 : shape.index("]")]
        body.pool.append((name, "f32", tuple(int(one) for one in inside.split(",") if one)))

    def later(self, body: Body) -> None:
        """An asynchronous computation or copy."""
        if self.flag():
            a = self.some(body, "f32")
            if a is not None:
                shape = self.text("f32", a[2])
                start = self.raw(body, f"({shape}, {shape}, u32[])", f"copy-start({a[0]})")
                self.add(body, "f32", a[2], f"copy-done({start})")
            return
        made = self.kernel(body, "wrapped")
        if made is not None:
            name, x, shape = made
            both = f"(({shape}), {shape}, s32[])"
            start = self.raw(body, both, f"async-start({x}), calls={name}")
            if self.flag():
                start = self.raw(body, both, f"async-update({start})")
            self.pooled(body, self.raw(body, shape, f"async-done({start})"), shape)

    # ------------------------------------------------------------ other devices
    def who(self, body: Body) -> None:
        self.devices = True
        number = self.raw(body, "u32[]", str(self.pick(["replica-id()", "partition-id()"])))
        self.add(body, "s32", (), f"convert({number})")

    def together(self, body: Body) -> None:
        """A collective, in one piece."""
        a = self.some(body, "f32")
        if a is None or not a[2]:
            return
        self.devices = True
        groups = self.pick(["replica_groups={{0,1}}", "replica_groups={}"])
        along = self.number(0, len(a[2]) - 1)
        doubled = tuple(2 * s if d == along else s for d, s in enumerate(a[2]))
        to = self.reducer("f32", str(self.pick(["add", "maximum"])))
        ways = "all-reduce all-gather reduce-scatter all-to-all collective-permute collective-broadcast"
        way = self.pick(ways.split())
        if way == "all-reduce":
            self.add(body, "f32", a[2], f"all-reduce({a[0]}), {groups}, to_apply={to}")
        elif way == "collective-permute":
            self.add(body, "f32", a[2], f"collective-permute({a[0]}), source_target_pairs={_PAIRS}")
        elif way == "collective-broadcast":
            self.add(body, "f32", a[2], f"collective-broadcast({a[0]}), replica_groups={{{{0,1}}}}")
        else:
            gathered = self.add(body, "f32", doubled, f"all-gather({a[0]}), {groups}, dimensions={{{along}}}")[0]
            if way == "reduce-scatter":
                what = f"reduce-scatter({gathered}), {groups}, dimensions={{{along}}}, to_apply={to}"
                self.add(body, "f32", a[2], what)
            elif way == "all-to-all":
                self.add(body, "f32", doubled, f"all-to-all({gathered}), {groups}, dimensions={{{along}}}")

    def apart(self, body: Body) -> None:
        """A collective that starts and is waited for."""
        a = self.some(body, "f32")
        if a is None or not a[2]:
            return
        self.devices = True
        shape = self.text("f32", a[2])
        way = self.pick("all-reduce all-gather collective-permute send ragged-all-to-all".split())
        if way == "all-reduce":
            to = self.reducer("f32", "add")
            start = self.raw(body, shape, f"all-reduce-start({a[0]}), replica_groups={{{{0,1}}}}, to_apply={to}")
            self.add(body, "f32", a[2], f"all-reduce-done({start})")
        elif way == "all-gather":
            doubled = (2 * a[2][0], *a[2][1:])
            start = self.raw(
                body, f"({shape}, {self.text('f32', doubled)})",
                f"all-gather-start({a[0]}), replica_groups={{{{0,1}}}}, dimensions={{0}}",
            )  # fmt: skip
            self.add(body, "f32", doubled, f"all-gather-done({start})")
        elif way == "collective-permute":
            start = self.raw(
                body, f"({shape}, {shape}, u32[], u32[])",
                f"collective-permute-start({a[0]}), source_target_pairs={_PAIRS}",
            )  # fmt: skip
            self.add(body, "f32", a[2], f"collective-permute-done({start})")
        elif way == "send":
            self.count += 1
            channel = f"channel_id={self.count}"
            token = self.raw(body, "token[]", "after-all()")
            triple = f"({shape}, u32[], token[])"
            sent = self.raw(body, triple, f"send({a[0]}, {token}), {channel}, {_SEND}")
            self.raw(body, "token[]", f"send-done({sent}), {channel}")
            got = self.raw(body, triple, f"recv({token}), {channel}, {_SEND}")
            both = self.raw(body, f"({shape}, token[])", f"recv-done({got}), {channel}")
            self.add(body, "f32", a[2], f"get-tuple-element({both}), index=0")
        else:
            rows = a[2][0]
            room = self.filled(body, "f32", (2 * rows, *a[2][1:]), 0)
            starts, sizes = (self.filled(body, "s32", (2,), value) for value in (0, rows))
            me = self.raw(body, "s32[]", f"convert({self.raw(body, 'u32[]', 'replica-id()')})")
            place = self.raw(body, "s32[]", f"multiply({me}, {self.raw(body, 's32[]', f'constant({rows})')})")
            there = self.raw(body, "s32[2]{0}", f"broadcast({place}), dimensions={{}}")
            self.add(
                body, "f32", (2 * rows, *a[2][1:]),
                f"ragged-all-to-all({a[0]}, {room}, {starts}, {sizes}, {there}, {sizes}), replica_groups={{{{0,1}}}}",
            )  # fmt: skip


ALONE = (
    "curve curve bytes high rounded random generated factor solve transform normalized ragged scaled best scanned"
    " dynamic token marked fused later"
).split()
"""Forms that one device can do for itself."""
RARE = [*ALONE, "who", "together", "together", "apart", "apart"]
"""All rare forms, by their methods."""


def module_text(number: Callable[[int, int], int], forms: Sequence[str] = (), *, devices: bool = True) -> str:
    """The text of a module; with `forms` the entry's last steps are those, by their names.

    Without `devices` nothing asks for other devices.
    """
    writer = RareWriter(number)
    writer.alike = devices
    body = Body("main")
    for parameter in range(number(1, 3)):
        dims = writer.dimensions(0)
        kind = writer.pick(["f32", "f32", "s32"])
        writer.add(body, str(kind), dims, f"parameter({parameter})")
    for _ in range(number(3, 14)):
        writer.step(body, 2)
    for form in forms:
        getattr(writer, form)(body)
    plain = body.pool[-4:]
    shape = "(" + ", ".join(writer.text(k, d) for _, k, d in plain) + ")"
    body.lines.append(f"  ROOT result = {shape} tuple({', '.join(v[0] for v in plain)})")
    head = "HloModule m" + (", replica_count=2" if writer.devices else "")
    return f"{head}\n\n" + "\n".join(writer.done) + "\nENTRY main {\n" + "\n".join(body.lines) + "\n}\n"


@st.composite
def modules(draw: st.DrawFn, *, devices: bool = True) -> str:
    """The text of a module."""
    return module_text(lambda low, high: draw(st.integers(low, high)), devices=devices)
