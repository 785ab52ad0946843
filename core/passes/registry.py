"""Which passes there are: XLA's name, the class (imported when used), and one line on it.

A pass is written ``name`` or ``name{option=value,…}``; options are the fields of its dataclass, and `pass_text` writes
what `Registry.make` reads. A plugin is a Python file with a function ``register(registry)`` that calls
`Registry.add_pass` or `Registry.add_rule`; it runs because the user named it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.passes.spelling import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.rules.base import Rule

_TABLE = """
algsimp passes.algsimp:AlgebraicSimplifier
    algebraic simplifier: local rewrite rules
all-gather-simplifier passes.collectives:AllGatherSimplifier
    all-gathers that gather nothing
all-reduce-folder passes.collectives:AllReduceFolder
    nested all-reduces in one
all-reduce-promotion passes.expand.float_normalization:AllReducePromotion
    reductions over devices in f32
all-reduce-reassociate passes.collectives:AllReduceReassociate
    one all-reduce for the sum of two
all-reduce-simplifier passes.collectives:AllReduceSimplifier
    reductions over one device, or of equal values
all_to_all_decomposer passes.collectives:AllToAllDecomposer
    all-to-alls of slices
batch-dot-simplification passes.expand.contractions:BatchDotSimplification
    drops batch dimensions of size 1 from dots
batched_gather_scatter_normalizer passes.expand.indices:BatchedGatherScatterNormalizer
    writes batching dimensions of gathers and scatters out
batchnorm_expander passes.expand.elementary:BatchNormExpander
    batch normalization by its formulas
bitcast_dtypes_expander passes.expand.formats:BitcastDtypesExpander
    bits of another width by shifts
broadcast_canonicalizer passes.layout_cleanup:BroadcastCanonicalizer
    broadcasts with ascending dimensions
buffer-assignment buffers.assignment_pass:BufferAssignmentPass
    gives every value of a scheduled module its address
call-inliner passes.call_inliner:CallInliner
    puts called bodies in place of calls
change-op-data-type passes.expand.contractions:ChangeOpDataType
    products of halves computed in f32
cholesky_expander passes.expand.linear_algebra:CholeskyExpander
    Cholesky factors as loops
comparison-expander passes.expand.elementary:ComparisonExpander
    total order of floats by their bits
computation-deduplicator passes.simple:ComputationDeduplicator
    makes equal small computations one
conditional-canonicalizer passes.conditionals:ConditionalCanonicalizer
    branches take and give tuples
conditional-to-select passes.conditionals:ConditionalToSelect
    conditionals in reducers become selects
constant_folding passes.constant_folding:HloConstantFolding
    evaluates instructions of constants
control-dep-rewriter passes.markers:ControlDepRewriter
    control edges for calls that stand for them
convert-mover passes.simple:ConvertMover
    moves data in the narrower type
convolution-canonicalization passes.expand.convolutions:ConvCanonicalization
    dimensions of convolutions in library order
convolution-group-converter passes.expand.convolutions:ConvolutionGroupConverter
    writes groups of convolutions out
copy-insertion buffers.copy_insertion:CopyInsertion
    copies values that would overwrite each other in one buffer
copy_fusion fusion.gpu.copy_fusion:CopyFusion
    copies of what a fusion computes as further results of it
cse passes.cse:HloCse
    merges instructions that compute the same value
cse_barrier_expander passes.collectives:OptimizationBarrierExpander
    removes optimization barriers
dce passes.dce:HloDce
    removes what nobody uses
dot-merger passes.dot_merger:DotMerger
    dots that share an operand as one
dot-strength-reduction passes.dot_merger:DotStrengthReduction
    small dots as multiply and reduce
dot_decomposer passes.expand.contractions:DotDecomposer
    brings dots into canonical form
dynamic-dimension-simplifier passes.simple:DynamicDimensionSimplifier
    cleans up what computations of sizes leave
dynamic-index-splitter passes.expand.indices:DynamicIndexSplitter
    gives dynamic slices scalar starts
dynamic_padder passes.expand.dynamic_padder:DynamicPadder
    arrays of run-time size as arrays of their bound
eigh_expander passes.expand.factorizations:EighExpander
    eigenvalues of Hermitian matrices by loops
flatten-call-graph passes.flatten_call_graph:FlattenCallGraph
    gives every call its own computation
float-normalization-bf16 passes.expand.float_normalization:bf16
    operations in bf16 computed in a wider type
float-normalization-f4e2m1fn passes.expand.float_normalization:f4e2m1fn
    operations in f4e2m1fn computed in a wider type
float-normalization-f8e3m4 passes.expand.float_normalization:f8e3m4
    operations in f8e3m4 computed in a wider type
float-normalization-f8e4m3 passes.expand.float_normalization:f8e4m3
    operations in f8e4m3 computed in a wider type
float-normalization-f8e4m3b11fnuz passes.expand.float_normalization:f8e4m3b11fnuz
    operations in f8e4m3b11fnuz computed in a wider type
float-normalization-f8e4m3fn passes.expand.float_normalization:f8e4m3fn
    operations in f8e4m3fn computed in a wider type
float-normalization-f8e4m3fnuz passes.expand.float_normalization:f8e4m3fnuz
    operations in f8e4m3fnuz computed in a wider type
float-normalization-f8e5m2 passes.expand.float_normalization:f8e5m2
    operations in f8e5m2 computed in a wider type
float-normalization-f8e5m2fnuz passes.expand.float_normalization:f8e5m2fnuz
    operations in f8e5m2fnuz computed in a wider type
float-normalization-f8e8m0fnu passes.expand.float_normalization:f8e8m0fnu
    operations in f8e8m0fnu computed in a wider type
float-normalization-s4 passes.expand.float_normalization:s4
    operations in s4 computed in a wider type
float-normalization-u4 passes.expand.float_normalization:u4
    operations in u4 computed in a wider type
fusion fusion.cpu.instruction_fusion:CpuInstructionFusion
    XLA:CPU's instruction fusion: producers into the loops that read them
fusion-wrapper fusion.wrapper:FusionWrapper
    gives lone loop instructions a fusion of their own
gather_expander passes.expand.indices:GatherExpander
    writes gathers of one slice out
gather_simplifier passes.expand.indices:GatherSimplifier
    brings gathers into one form
gemv-rewriter passes.expand.contractions:GemvRewriter
    matrix-vector products as matrix products
hlo-memory-scheduler schedule.memory_scheduler:HloMemoryScheduler
    orders instructions so that they need little memory
hlo-verifier passes.invariants:HloVerifier
    checks the invariants of the module
horizontal_input_fusion fusion.gpu.horizontal_fusion:HorizontalInputFusion
    small reductions that one instruction reads as one kernel (XLA until July 2025)
horizontal_loop_fusion fusion.gpu.horizontal_fusion:HorizontalLoopFusion
    small loops that one instruction reads as one kernel (XLA until July 2025)
layout-assignment layout.assignment:LayoutAssignment
    gives every array a layout and adds the copies it costs
layout_normalization layout.normalization:LayoutNormalization
    writes arrays with the slowest dimension first, copies as transposes
logistic-expander passes.expand.elementary:LogisticExpander
    the logistic function by its formula
loop-schedule-linearizer buffers.loop_schedule_linearizer:LoopScheduleLinearizer
    reads of a loop's state before its writes
map-inline passes.expand.elementary:MapInliner
    maps as plain operations
move_copy_to_users layout.move_copy_to_users:MoveCopyToUsers
    takes copies below operations that keep layouts
multi_output_fusion fusion.gpu.multi_output_fusion:MultiOutputFusion
    kernels that read the same values as one with several results
operand_upcaster passes.expand.contractions:OperandUpcaster
    operands of products in the type of the result
optimize_input_output_buffer_alias passes.donation:OptimizeInputOutputBufferAlias
    donated parameters as the memory of outputs of their size
post-scheduling-copy-insertion buffers.late_copies:PostSchedulingCopyInsertion
    copies that the schedule makes needless go
priority-fusion fusion.gpu.priority_fusion:PriorityFusion
    fuses first what saves most time by the GPU's cost model
propagate-call-metadata passes.finishing:PropagateCallMetadata
    names of calls before those of what they call
qr_expander passes.expand.factorizations:QrExpander
    QR factors as loops
reduce-decomposer passes.layout_cleanup:ReduceDecomposer
    reductions that keep the order of what they read
reduce-window-resizer passes.expand.windows:ReduceWindowResizer
    windows over vectors as windows over matrices
reduce-window-rewriter passes.expand.windows:ReduceWindowRewriter
    long scans in two levels
rename_fusions fusion.gpu.wrapper:RenameFusions
    names of fusions that say what they are built around
reshape-decomposer layout.reshape_decomposer:ReshapeDecomposer
    reshapes as bitcasts, with copies where bytes must move
reshape-mover passes.reshape_mover:ReshapeMover
    moves reshapes and transposes below elementwise operations
result_caster passes.expand.contractions:ResultCaster
    narrow products computed in the operands' type
rng-bit-generator-expander passes.expand.random_bits:RngBitGeneratorExpander
    random bits by integer arithmetic
rng-expander passes.expand.random_bits:RngExpander
    random numbers by integer arithmetic
sanitize-constant-names passes.finishing:SanitizeConstantNames
    names of constants that a linker takes
scan_expander passes.expand.scans:ScanExpander
    scans as loops
scatter_expander passes.expand.indices:ScatterExpander
    writes scatters of one window out
scatter_simplifier passes.expand.indices:ScatterSimplifier
    brings scatters into one form
select_and_scatter_expander passes.expand.windows:SelectAndScatterExpander
    select-and-scatter as reduce-window and scatter
sharding-remover passes.markers:ShardingRemover
    removes annotations of shardings
simplify-conditional passes.conditionals:ConditionalSimplifier
    takes known and cheap branches, drops unused parts
simplify-fp-conversions passes.simple:SimplifyFpConversions
    drops float conversions that lose nothing
simplify-sorts passes.simple:SortSimplifier
    drops sort operands that nobody needs
simplify-while-loops passes.loops.simplifier:WhileLoopSimplifier
    drops dead state, loops of no or one trip, counters
slice-sinker passes.simple:SliceSinker
    one operation for several on slices of a value
small-while-loop-hoisting passes.finishing:SmallWhileLoopHoisting
    loops of few bytes as one call
sort-iota-fusion fusion.gpu.sort_iota_fusion:SortIotaFusion
    sorts take in the iotas that they sort along
stochastic_convert_decomposer passes.expand.formats:StochasticConvertDecomposer
    randomly rounded integers by comparisons
strip-memory-placement-annotations passes.markers:StripMemoryPlacementAnnotations
    removes annotations of where values are held
sub-byte-size-setter passes.sub_byte:SubByteSizeSetter
    packs numbers of less than a byte
topk-decomposer passes.expand.topk:TopkDecomposer
    topk by sorting
topk-rewriter passes.expand.topk:TopkRewriter
    sorts of which the first are taken as a library call
transpose-folding passes.expand.contractions:TransposeFolding
    folds transposes into dots
tree_reduction_rewriter passes.expand.windows:TreeReductionRewriter
    long reductions in steps of 32
triangular_solve_expander passes.expand.linear_algebra:TriangularSolveExpander
    triangular systems as loops
triton-gemm-rewriter fusion.gpu.gemm_fusion:GemmFusion
    dots with what is worth computing beside them as Triton kernels
triton-softmax-rewriter fusion.gpu.softmax_rewriter:SoftmaxRewriterTriton
    normalizations as Triton kernels where that is faster
tuple-simplifier passes.tuple_simplifier:TupleSimplifier
    takes values past tuples
while-loop-constant-sinking passes.loops.motion:WhileLoopConstantSinking
    constants of a loop's state inside the loop
while-loop-invariant-code-motion passes.loops.motion:WhileLoopInvariantCodeMotion
    computes invariant values before the loop
while-loop-trip-count-annotator passes.loops.annotator:WhileLoopTripCountAnnotator
    notes trip counts on loops
while_loop_unroller passes.loops.annotator:WhileLoopUnroller
    writes loops of few trips out
zero_sized_hlo_elimination passes.simple:ZeroSizedHloElimination
    empty constants for values without elements
"""
"""A line with the pass's name and where its class is (below ``hloscope.core``), and a line that says what it does."""

PASSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        name: (f"hloscope.core.{where}", description)
        for name, where, description in re.findall(r"^(\S+) (\S+)\n +(.+)$", _TABLE, re.M)
    }
)
"""Pass name -> (``module:Class``, one line)."""

_TEXT = re.compile(r"([^\s{}]+)(?:\{([^{}]*)\})?$")
_OPTION_TYPES = (bool, int, float, str)


@dataclasses.dataclass(frozen=True, slots=True)
class _Added:
    """A pass of a plugin."""

    factory: Callable[..., HloPass]
    description: str
    path: str | None
    """The plugin that added it, and the line of the call."""
    line: int | None


class Registry:
    """The passes of one command: the built-in ones and those of its plugins."""

    def __init__(self) -> None:
        self._added: dict[str, _Added] = {}
        self._rules: list[Rule] = []
        self._plugins: list[str] = []

    def names(self) -> tuple[str, ...]:
        """All pass names, sorted."""
        return tuple(sorted({*PASSES, *self._added}))

    def describe(self) -> Iterator[tuple[str, str]]:
        """Name and one line of every pass, sorted by name."""
        for name in self.names():
            yield name, self._added[name].description if name in self._added else PASSES[name][1]

    # ---------------------------------------------------------------- for plugins
    def add_pass(self, name: str, factory: Callable[..., HloPass], description: str = "") -> None:
        """Add a pass under a name, or put another in place of a built-in one.

        `factory` is called with the options as keywords; a dataclass will do.
        """
        if not _TEXT.match(name) or "," in name:
            raise UsageError(f"a pass cannot be called {name!r}")
        path, line = self._plugin_line()
        given: object = factory
        if not callable(given):
            raise UsageError(f"pass {name} needs a factory that makes it, got {_a(given)}", path=path, line=line)
        self._added[name] = _Added(factory, description, path, line)

    def add_rule(self, rule: Rule) -> None:
        """Add a rewrite rule to ``algsimp``, tried after its own. Raises UsageError for what is no rule."""
        from hloscope.core.passes.rules.base import Rule

        if not isinstance(cast("object", rule), Rule):
            path, line = self._plugin_line()
            said = f"a rule is made with @rule(name, opcodes, summary), got {_a(rule)}"
            raise UsageError(said, path=path, line=line)
        self._rules.append(rule)

    def load_plugin(self, path: str) -> None:
        """Run a plugin file and let it register. Raises UsageError with the file and line of what went wrong."""
        from runpy import run_path

        self._plugins.append(path)
        try:
            register = run_path(path).get("register")
        except (Exception, SystemExit) as error:
            raise _plugin_error(path, error) from error
        if not callable(register):
            raise UsageError("a plugin needs a function register(registry)", path=path)
        try:
            register(self)
        except HloscopeError as error:
            error.path = error.path or path
            raise
        except (Exception, SystemExit) as error:
            raise _plugin_error(path, error) from error

    def plugin_error(self, error: BaseException) -> UsageError | None:
        """The line to show for an exception that a plugin's pass or rule raised while it ran; None for any other."""
        import traceback

        files = {os.path.abspath(frame.filename) for frame in traceback.extract_tb(error.__traceback__)}
        path = next((one for one in self._plugins if os.path.abspath(one) in files), None)
        return None if path is None else _plugin_error(path, error)

    @contextmanager
    def plugin_faults(self) -> Generator[None]:
        """Around a compile: what a plugin's pass or rule raises, its exit too, becomes one line; bugs of ours stay."""
        try:
            yield
        except HloscopeError:
            raise
        except (Exception, SystemExit) as error:
            known = self.plugin_error(error)
            if known is None:
                raise
            raise known from error

    def _plugin_line(self) -> tuple[str | None, int | None]:
        """File and line of the plugin that is calling; (None, None) where another program calls."""
        import traceback

        paths = {os.path.abspath(one): one for one in self._plugins}
        for frame in reversed(traceback.extract_stack()):
            path = paths.get(os.path.abspath(frame.filename))
            if path is not None:
                return path, frame.lineno
        return None, None

    # ---------------------------------------------------------------- making passes
    def make(self, text: str) -> HloPass:
        """The pass that ``name{option=value,…}`` names.

        Raises UsageError for unknown names, options and values, and where a plugin's factory fails or makes no pass.
        """
        found = _TEXT.match(text.strip())
        if found is None:
            raise UsageError(f"a pass is written name or name{{option=value}}, got {text!r}")
        name, options = found[1], found[2] or ""
        if name not in self._added and name not in PASSES:
            raise unknown("pass", name, self.names())
        factory = self._factory(name)
        keywords = _options(name, factory, options)
        if name == "algsimp" and self._rules and name not in self._added:
            from hloscope.core.passes.rules import ALGSIMP_RULES

            keywords["rules"] = (*ALGSIMP_RULES, *self._rules)
        try:
            made = factory(**keywords)
        except HloscopeError:
            raise
        except (Exception, SystemExit) as error:
            if (known := self.plugin_error(error)) is not None:
                raise known from error
            if isinstance(error, TypeError):
                raise UsageError(f"pass {name} does not take these options: {error}") from error
            raise
        added = self._added.get(name)
        if added is not None and (missing := _missing(made)):
            raise UsageError(
                f"the factory of pass {name} made {_a(made)}, which is no pass: it lacks {', '.join(missing)}",
                path=added.path,
                line=added.line,
            )
        return made

    def make_for_pipeline(self, text: str) -> HloPass:
        """As `make`, but options of the built-in pass that a plugin's pass of that name does not have are left out."""
        name = text.partition("{")[0]
        added = self._added.get(name)
        if added is None or dataclasses.is_dataclass(added.factory):
            known = None if added is None else {one.name for one in dataclasses.fields(cast("Any", added.factory))}
        else:
            known = set[str]()
        if known is None:
            return self.make(text)
        kept = [item for item in _items(text.partition("{")[2].rstrip("}")) if item.partition("=")[0].strip() in known]
        return self.make(name + ("{" + ",".join(kept) + "}" if kept else ""))

    def make_all(self, text: str) -> list[HloPass]:
        """The passes of ``a,b{option=value},c``. Raises UsageError."""
        return [self.make(one) for one in split_passes(text)]

    def _factory(self, name: str) -> Callable[..., HloPass]:
        if name in self._added:
            return self._added[name].factory
        module, _, attribute = PASSES[name][0].partition(":")
        return cast("Callable[..., HloPass]", getattr(import_module(module), attribute))


def split_passes(text: str) -> list[str]:
    """Split at commas outside braces; blanks around names and empty names are dropped."""
    parts = re.split(r",(?![^{]*\})", text)
    return [part.strip() for part in parts if part.strip()]


def pass_text(one: HloPass) -> str:
    """How a pass is written: its name, and the options that differ from their defaults."""
    if not dataclasses.is_dataclass(one) or isinstance(one, type):
        return one.name
    given = [
        f"{option.name}={_format(getattr(one, option.name))}"
        for option in dataclasses.fields(one)
        if isinstance(option.default, _OPTION_TYPES) and getattr(one, option.name) != option.default
    ]
    return one.name + ("{" + ",".join(given) + "}" if given else "")


def _missing(made: object) -> list[str]:
    """What an object lacks to be a pass, each in words."""
    lacks: list[str] = []
    if not isinstance(getattr(made, "name", None), str):
        lacks.append("name (a text)")
    if not isinstance(getattr(made, "is_pipeline", None), bool):
        lacks.append("is_pipeline (True or False)")
    if isinstance(made, type) or not callable(getattr(made, "run", None)):
        lacks.append("run(module, ctx)")
    return lacks


def _a(value: object) -> str:
    """The kind of a value with its article."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(name: str, factory: Callable[..., HloPass], text: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if dataclasses.is_dataclass(factory):
        known = {one.name: one.default for one in dataclasses.fields(factory) if isinstance(one.default, _OPTION_TYPES)}
    given: dict[str, Any] = {}
    for item in _items(text):
        key, equals, value = item.partition("=")
        key, value = key.strip(), value.strip()
        if not equals:
            raise UsageError(f"an option of pass {name} is written option=value, got {item!r}")
        if key not in known:
            if not known:
                raise UsageError(f"pass {name} has no options, got {key!r}")
            raise unknown(f"option of pass {name}", key, known)
        given[key] = _read(name, key, known[key], value)
    return given


def _items(text: str) -> Iterable[str]:
    return (part for part in text.split(",") if part.strip())


def _read(name: str, key: str, default: object, text: str) -> object:
    if isinstance(default, bool):
        if text in ("true", "false"):
            return text == "true"
        raise UsageError(f"option {key} of pass {name} is true or false, got {text!r}")
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise UsageError(f"option {key} of pass {name} is a number, got {text!r}") from None
    return text


def _plugin_error(path: str, error: BaseException) -> UsageError:
    """One line for whatever a plugin's code raised, with the innermost line of the plugin itself."""
    import traceback

    whole = os.path.abspath(path)
    if isinstance(error, OSError) and isinstance(error.filename, str) and os.path.abspath(error.filename) == whole:
        return UsageError(f"the plugin cannot be read: {error.strerror}", path=path)
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if os.path.abspath(frame.filename) == whole:
            line = frame.lineno
    what = " ".join(str(error).split())
    return UsageError(f"the plugin failed: {type(error).__name__}: {what}", path=path, line=line)
