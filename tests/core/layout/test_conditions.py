"""What decides layouts beside the module: the GPU's generation, flags, partitioning, and loops that forbid copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.recorded import Recorded

from hloscope.core.analysis.device import parse_device
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import ParseError
from hloscope.core.hlo.module import HloModule
from hloscope.core.layout.assignment import LayoutAssignment, assign_layouts, backend_of
from hloscope.core.layout.backend import Backend
from hloscope.core.layout.conditions import Conditions, of_compile
from hloscope.core.layout.gpu import GpuBackend
from hloscope.core.layout.orders import show_shape
from hloscope.core.layout.remedies import RemedyFinder
from hloscope.core.layout.times import RunCounts
from hloscope.core.ledger.events import LayoutConstraint, LayoutCopy
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flags import PassFlags
from hloscope.core.text import load_module

NHWC, NCHW = "{3,2,1,0}", "{2,1,3,0}"
DHWC, CDHW = "{4,3,2,1,0}", "{3,2,1,4,0}"


def convolution(kind: str, spatial: int = 2) -> str:
    """One convolution of the library with its channels last."""
    size, letters = ",".join(["8"] * spatial), "".join(map(str, range(spatial)))
    shape, kernel = f"{kind}[2,{size},4]", f"{kind}[{','.join(['3'] * spatial)},4,4]"
    window = f"size={'x'.join(['3'] * spatial)} pad={'x'.join(['1_1'] * spatial)}"
    return f"""HloModule m

ENTRY e {{
  a = {shape} parameter(0)
  b = {kernel} parameter(1)
  c = ({shape}, u8[0]) custom-call(a, b), window={{{window}}}, dim_labels=b{letters}f_{letters}io->b{letters}f,
    custom_call_target="__cudnn$convForward"
  ROOT r = {shape} get-tuple-element(c), index=0
}}
"""


def constraints(ledger: Recorded) -> list[LayoutConstraint]:
    return [one for one in ledger.events if isinstance(one, LayoutConstraint)]


def form(text: str, backend: Backend) -> str:
    """The layout of the convolution's image."""
    module = load_module(text)
    assign_layouts(module, backend, PassContext(target="gpu"))
    call = next(one for one in module.instructions() if one.opcode == "custom-call")
    return show_shape(call.operand(0).shape)


# Checked with the compiler itself: dumps for an A100, an H100, and the A100's description with 7.0 and 10.0.
@pytest.mark.parametrize(
    ("device", "kind", "spatial", "layout"),
    [
        ("h100", "f32", 2, NHWC),
        ("h100", "f16", 3, CDHW),
        ("h100", "f64", 2, NCHW),
        ("gpu", "f32", 2, NHWC),
        ("b200", "f32", 2, NHWC),
        ("a100", "f32", 2, NCHW),
        ("a100", "f16", 2, NHWC),
        ("a100", "bf16", 3, CDHW),
        ("a100", "s8", 2, NHWC),
        ("mi300", "f16", 2, NCHW),
        ("mi300", "s8", 2, NHWC),
    ],
)
def test_channels_lie_where_the_gpus_generation_wants_them(device: str, kind: str, spatial: int, layout: str) -> None:
    assert form(convolution(kind, spatial), backend_of(device)) == layout


def test_flags_of_our_own_compile_are_read() -> None:
    for flag, layout in (("nchw", NCHW), ("nhwc", NHWC)):
        module = load_module(convolution("f32"))
        flags = PassFlags().parse(f"--xla_gpu_force_conv_{flag}=true")
        LayoutAssignment().run(module, PassContext(target="a100", flags=flags))
        call = next(one for one in module.instructions() if one.opcode == "custom-call")
        assert show_shape(call.operand(0).shape) == layout


DEVICE = """gpu_device_info {{
  threads_per_block_limit: 1024 core_count: 80 fpus_per_core: 64 memory_bandwidth: 898048000000
  l2_cache_size: 6291456 clock_rate_ghz: 1.53 shared_memory_per_block: 49152 shared_memory_per_core: 98304
  cuda_compute_capability {{ major: {major} }}
}}
platform_name: "CUDA"
"""


class Reports:
    """What the conditions read of a compile."""

    path, label, target, stages = "dump", "m", "gpu", ()

    def __init__(self, **texts: str) -> None:
        self.texts = {FileKind[name]: text for name, text in texts.items()}

    def report(self, kind: FileKind) -> str | None:
        return self.texts.get(kind)


def conditions(**texts: str) -> Conditions:
    return of_compile(Reports(**texts))  # pyright: ignore[reportArgumentType]


def test_a_dump_says_the_gpu_the_flags_and_the_partitioning() -> None:
    settings = (
        'entry_computation_layout {} num_partitions: 2 debug_options { xla_gpu_force_conv_nhwc: true xla_x: "y" }'
    )
    found = conditions(TARGET_CONFIG=DEVICE.format(major=7), CONFIG=settings)
    backend = found.on(backend_of("gpu"))
    assert isinstance(backend, GpuBackend)
    assert (backend.capability, backend.force_conv_nhwc, backend.spmd, found.notes) == ((7, 0), True, False, ())
    assert form(convolution("f32"), backend) == NHWC
    assert form(convolution("f16"), conditions(TARGET_CONFIG=DEVICE.format(major=6)).on(backend_of("gpu"))) == NCHW
    assert conditions(CONFIG="entry_computation_layout {} use_spmd_partitioning: true").spmd
    flags = conditions(DEBUG_OPTIONS="xla_gpu_experimental_pack_dot_operands_along_k_dimension: false").on(GpuBackend())
    assert flags == GpuBackend(pack_along_contracting=False)
    assert conditions().on(backend_of("cpu")) == backend_of("cpu")


def test_damaged_files_beside_a_dump_are_told() -> None:
    found = conditions(TARGET_CONFIG="gpu_device_info { core_count", CONFIG="%%%")
    assert found.device is None and len(found.notes) == 2
    assert "an H100 is assumed" in found.notes[0] and "default flags" in found.notes[1]


def test_a_file_names_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "Volta.txtpb"
    file.write_text(DEVICE.format(major=7))
    assert backend_of(str(file)) == GpuBackend(capability=parse_device(DEVICE.format(major=7)).compute_capability)
    file.write_text("nothing: 1")
    with pytest.raises(ParseError):
        backend_of(str(file))


# ---------------------------------------------------------------- channels
CHANNEL = """HloModule m, entry_computation_layout={(f32[4,6]{1,0})->f32[4,6]{1,0}}

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY e {
  a = f32[4,6] parameter(0)
  r = f32[4,6] all-reduce(a), channel_id=3, to_apply=add
  ROOT n = f32[4,6] negate(r)
}
"""


@pytest.mark.parametrize("spmd", [True, False])
def test_the_layout_of_a_channel_stands_in_later_rounds(spmd: bool) -> None:
    ledger = Recorded()
    assign_layouts(load_module(CHANNEL), Backend(spmd=spmd), PassContext(ledger, target="base"))
    asked = [one for one in constraints(ledger) if one.rule == "channel"]
    assert {one.round for one in asked} == (set() if spmd else {1})
    assert all(one.layout == "{1,0}" and one.subject in ("r", "a") for one in asked)


# ---------------------------------------------------------------- loops that forbid copies
LOOP = """HloModule t

c {
  t = (s32[2,8], u32[]) parameter(0)
  i = u32[] get-tuple-element(t), index=1
  n = u32[] constant(8)
  ROOT p = pred[] compare(i, n), direction=LT
}

b {
  t = (s32[2,8], u32[]) parameter(0)
  x = s32[2,8] get-tuple-element(t), index=0
  i = u32[] get-tuple-element(t), index=1
  one = u32[] constant(1)
  j = u32[] add(i, one)
  k = s32[2,8]{1,0} custom-call(x), custom_call_target="K", operand_layout_constraints={s32[2,8]{1,0}}
  l = s32[2,8]{0,1} custom-call(x), custom_call_target="L", operand_layout_constraints={s32[2,8]{0,1}}
  m = s32[2,8]{0,1} custom-call(k, l), custom_call_target="M",
    operand_layout_constraints={s32[2,8]{1,0}, s32[2,8]{0,1}}
  ROOT r = (s32[2,8], u32[]) tuple(m, j)
}

ENTRY main {
  a = s32[2,8]{1,0} parameter(0)
  z = u32[] constant(0)
  t = (s32[2,8], u32[]) tuple(a, z)
  w = (s32[2,8], u32[]) while(t), condition=c, body=bATTRIBUTES
  ROOT o = s32[2,8]{1,0} get-tuple-element(w), index=0
}
"""


def copies_of(module: HloModule, name: str) -> int:
    computation = next(one for one in module.computations if one.name == name)
    return sum(one.opcode == "copy" for one in computation.instructions)


def test_a_loop_may_forbid_copies_inside() -> None:
    plain = load_module(LOOP.replace("ATTRIBUTES", ""))
    assign_layouts(plain, Backend(), PassContext(target="base"))
    assert copies_of(plain, "b") > 0
    ledger = Recorded()
    module = load_module(LOOP.replace("ATTRIBUTES", ', frontend_attributes={xla_disable_while_loop_copies="true"}'))
    assign_layouts(module, Backend(), PassContext(ledger, target="base"))
    assert copies_of(module, "b") == 0
    turned = [one for one in constraints(ledger) if one.rule == "loop-without-copies"]
    # Each reader turns the state to its own layout, and the last one stands.
    assert {(one.subject, one.place, one.code) for one in turned} == {("t", "buffer{0}", "loop_forbids_copies")}
    parameter = next(one for one in module.computations if one.name == "b").parameters[0]
    assert show_shape(parameter.shape.tuple_shapes[0]) == turned[-1].layout != turned[-1].old_layout


# ---------------------------------------------------------------- events and remedies
SENT = """HloModule m, entry_computation_layout={(f32[16,8]{0,1})->f32[16,8]{1,0}}

ENTRY e {
  a = f32[16,8] parameter(0)
  ROOT r = f32[16,8]{1,0} custom-call(a), custom_call_target="x", operand_layout_constraints={f32[16,8]{0,1}},
    output_to_operand_aliasing={{}: (0, {})}
}
"""


def test_copies_made_before_layouts_are_chosen_are_events_too() -> None:
    ledger = Recorded()
    assignment = assign_layouts(load_module(SENT), Backend(), PassContext(ledger, target="base"))
    events = [one for one in ledger.events if isinstance(one, LayoutCopy)]
    assert [one.name for one in assignment.prepared] == ["copy"]
    assert ("copy", "aliased-operand", "r") in [(one.subject, one.code, one.user) for one in events]
    assert len(events) == len(assignment.copies) + 1


TWINS = """HloModule m, entry_computation_layout={(f32[6,6]{1,0})->f32[6,6]{1,0}}

f {
  x = f32[6,6] parameter(0)
  t = f32[6,6] transpose(x), dimensions={1,0}
  ROOT d = f32[6,6] dot(t, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY e {
  x = f32[6,6] parameter(0)
  c = f32[6,6] call(x), to_apply=f
  ROOT d = f32[6,6] dot(x, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_remedy_is_for_the_instruction_of_its_own_computation() -> None:
    module = load_module(TWINS)
    assignment = assign_layouts(module, backend_of("cpu"), PassContext(), remember=True)
    made = next(one for one in assignment.copies if one.operand.name == "t")
    found = RemedyFinder(lambda: load_module(TWINS), assignment).find(made)
    assert found is not None
    remedy, change = found
    assert (change.kind, change.name, change.computation) == ("dot", "d", "f")
    assert (remedy.copies_before, remedy.copies_after) == (1, 0)


def test_trips_are_counted_where_the_compiler_noted_none() -> None:
    module = load_module(LOOP.replace("ATTRIBUTES", ""))
    counts = RunCounts(module)
    assert {one.name: counts.of(one) for one in module.computations} == {"c": 9, "b": 8, "main": 1}
    endless = load_module(LOOP.replace("ATTRIBUTES", "").replace("j = u32[] add(i, one)", "j = u32[] multiply(i, i)"))
    counts = RunCounts(endless)
    assert counts.of(next(one for one in endless.computations if one.name == "b")) is None


MANY_READERS = """HloModule m, entry_computation_layout={
  (f32[2,4,8,3]{3,2,1,0})->(f32[2,16,8]{2,0,1}, f32[2,1,8,3]{3,2,1,0}, f32[2,96]{1,0})}

ENTRY e {
  p = f32[2,4,8,3] parameter(0)
  first = f32[2,1,8,3] slice(p), slice={[0:2],[3:4],[0:8],[0:3]}
  n = f32[2,1,8,3] collective-permute(first), channel_id=2, source_target_pairs={{0,1}}
  s = f32[2,4,8,1] slice(p), slice={[0:2],[0:4],[0:8],[0:1]}
  h = f32[2,4,8] reshape(s)
  g = f32[2,16,8] all-gather(h), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={1}, use_global_device_ids=true
  q = f32[2,96] reshape(p)
  ROOT r = (f32[2,16,8], f32[2,1,8,3], f32[2,96]) tuple(g, n, q)
}
"""


def test_a_layout_that_the_compiler_would_choose_is_no_remedy_where_giving_it_copies_more() -> None:
    assignment = assign_layouts(load_module(MANY_READERS), backend_of("gpu"), PassContext(target="gpu"), remember=True)
    finder = RemedyFinder(lambda: load_module(MANY_READERS), assignment)
    (made,) = assignment.copies
    # Left open, the parameter becomes {3,2,0,1} and 192 bytes are copied; given as {3,2,0,1} it costs 1,536 for 768.
    assert finder.find(made) is None
