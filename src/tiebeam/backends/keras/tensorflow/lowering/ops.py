"""TensorFlow's operations in core's words: one table from names to small rules.

What stands in no table is `Op.OPAQUE` and foreign: its body is unknown.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tensorflow as tf

from tiebeam.backends.graphs.axes import identity, without
from tiebeam.backends.graphs.rules import arithmetic, bits_read_anew, bounded, chosen, negated
from tiebeam.backends.keras.tensorflow.lowering import layout
from tiebeam.backends.keras.tensorflow.lowering.axes import broadcast, einsum
from tiebeam.backends.keras.tensorflow.lowering.calls import branches, loop
from tiebeam.backends.keras.tensorflow.lowering.indexing import INDEXING
from tiebeam.backends.keras.tensorflow.lowering.lists import LISTS
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, Step
from tiebeam.backends.keras.tensorflow.lowering.states import STATES
from tiebeam.ir import Axes, Op, Origin

Rule = Callable[[Lowering, Step], Any]

#: f(t*x) = t**degree * f(x) for t > 0.
DEGREES = {"Abs": 1.0, "Sqrt": 0.5, "Rsqrt": -0.5, "Sign": 0.0, "Square": 2.0, "Reciprocal": -1.0, "Inv": -1.0,
           "Relu": 1.0, "LeakyRelu": 1.0, "IsNan": 0.0, "IsInf": 0.0, "IsFinite": 0.0}  # fmt: skip
POINTWISE = frozenset(
    "Exp Expm1 Log Log1p Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Asinh Acosh Atanh Erf Erfc Erfinv Lgamma Digamma "
    "Floor Ceil Round Rint Relu6 Elu Selu Softplus Softsign Xlogy Xdivy Xlog1py ClipByValue Polygamma Zeta Igamma "
    "Igammac Betainc Ndtri BesselI0e BesselI1e Equal NotEqual Less LessEqual Greater GreaterEqual ApproximateEqual "
    "LogicalAnd LogicalOr LogicalNot BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift PopulationCount "
    "FloorDiv FloorMod Mod TruncateDiv TruncateMod NextAfter Real Imag Conj Complex ComplexAbs Angle "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVarsPerChannel QuantizeAndDequantizeV2 "
    "QuantizeAndDequantizeV3 QuantizeAndDequantizeV4".split()
)
SAME = frozenset(
    "Identity IdentityN Snapshot Cast CheckNumerics CheckNumericsV2 DebugIdentity DebugIdentityV2 EnsureShape "
    "DeepCopy Copy CopyHost PlaceholderWithDefault XlaSharding StopGradient PreventGradient".split()
)
CUT = frozenset(("StopGradient", "PreventGradient"))
RANDOM = frozenset(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomGamma "
    "RandomShuffle Multinomial StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt "
    "StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomNormal "
    "StatelessRandomNormalV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessMultinomial "
    "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg RngReadAndSkip "
    "StatefulUniform StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniformInt StatefulUniformFullInt "
    "StatelessShuffle".split()
)
REDUCTIONS = {"Sum": 1.0, "Mean": 1.0, "Max": 1.0, "Min": 1.0, "EuclideanNorm": 1.0, "ArgMax": 0.0, "ArgMin": 0.0,
              "Prod": None, "All": None, "Any": None}  # fmt: skip
#: Whether a dropout by this comparison keeps the draws below its bound, else those above.
KEPT = {"Less": True, "LessEqual": True, "Greater": False, "GreaterEqual": False}
#: Known not to carry a factor on; nothing to remark.
BARRIERS = frozenset(
    "Cumsum Cumprod CumulativeLogsumexp TopK TopKV2 ApproxTopK Where Unique UniqueV2 UniqueWithCounts InTopK InTopKV2 "
    "Conv1D Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D FusedBatchNorm FusedBatchNormV2 "
    "FusedBatchNormV3 SegmentSum SegmentMean SegmentMax UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin "
    "UnsortedSegmentProd SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN Bincount DenseBincount FFT RFFT IRFFT "
    "IFFT Cholesky MatrixInverse MatrixDeterminant MatrixSolve MatrixTriangularSolve Qr Svd SelfAdjointEigV2 "
    "TensorListLength "
    "TensorListPushBack TensorListPopBack TensorListConcatV2 EmptyTensorList TensorArrayV3 SpaceToBatchND "
    "BatchToSpaceND SpaceToDepth DepthToSpace ExtractImagePatches ResizeBilinear ResizeNearestNeighbor ScatterNd "
    "SparseTensorDenseMatMul SparseToDense SparseReshape SparseConcat RaggedRange StringSplitV2 StaticRegexReplace "
    "StringLower StringUpper "
    "SearchSorted LowerBound UpperBound MatrixDiagPartV3 MatrixDiagV3 Assert Print PrintV2 StringFormat HashTableV2 "
    "LookupTableFindV2 LookupTableSizeV2 L2Loss InvertPermutation SparseMatMul Cross ListDiff".split()
)


def lower_operation(low: Lowering, at: Step) -> None:
    """Append the nodes of one operation."""
    name = at.name
    if name in RULES:
        RULES[name](low, at)
    elif name in POINTWISE or name in DEGREES:
        low.elementwise(at, Op.POINTWISE, at.inputs, degree=DEGREES.get(name))
    elif name in SAME:
        _same(low, at)
    elif name in RANDOM:
        for out in (v for v in at.outputs if v >= 0):
            low.drafts[out].origin, low.drafts[out].random = Origin.RANDOM, True
    elif name in REDUCTIONS:
        _reduce(low, at)
    elif not _text(low, at):
        low.opaque(at, foreign=name not in BARRIERS)


def _text(low: Lowering, at: Step) -> bool:
    """Integers that words were looked up as, or hashed to, are ids as if they had been put in."""
    words = [v for v in at.inputs if v >= 0 and low.drafts[v].given]
    made = [v for v in at.outputs if v >= 0]
    if not words or any(low.drafts[v].dtype != "string" for v in words):
        return False
    if not made or any(not low.drafts[v].dtype.startswith(("int", "uint")) for v in made):
        return False
    for v in made:
        low.drafts[v].origin = Origin.INPUT
    return True


def _same(low: Lowering, at: Step) -> None:
    attached = (False,) if at.name in CUT else (None,)
    for v, out in zip(at.inputs, at.outputs, strict=False):
        if v >= 0 and out >= 0:
            if low.drafts[out].dtype == "variant":  # a list: its shape is ours, not TensorFlow's
                low.drafts[out].shape = low.shape(v)
            low.emit(at, Op.CAST, [v], [identity(low.rank(out))], [out], attached=attached)


def _made(low: Lowering, at: Step) -> None:
    """An array that the program made from nothing, or from numbers alone."""
    if any(low.drafts[v].varying for v in at.inputs if v >= 0):
        low.opaque(at)
    else:
        low.drafts[at.outputs[0]].origin = Origin.CONSTANT


def _size(low: Lowering, at: Step) -> None:
    if low.known(at.outputs[0]) is None and low.drafts[at.outputs[0]].given:
        low.opaque(at)
    else:
        low.drafts[at.outputs[0]].origin = Origin.CONSTANT


def _sum_of_many(low: Lowering, at: Step) -> None:
    """Equal terms are one, multiplied by how many they are."""
    draft, out = low.drafts[at.outputs[0]], at.outputs[0]
    terms = []
    for v in dict.fromkeys(at.inputs):
        times = at.inputs.count(v)
        if times > 1:
            many = low.fresh(draft.shape, draft.dtype, [v])
            v = low.elementwise(at, Op.MUL, [v, low.number(float(times), draft.dtype)], many)
        terms.append(v)
    total = terms[0]
    for v in terms[1:]:
        total = low.elementwise(at, Op.ADD, [total, v], low.fresh(draft.shape, draft.dtype, [total, v]))
    low.elementwise(at, Op.CAST, [total], out)


def _squared_difference(low: Lowering, at: Step) -> None:
    draft = low.drafts[at.outputs[0]]
    apart = low.fresh(draft.shape, draft.dtype, at.inputs)
    low.elementwise(at, Op.SUB, at.inputs, apart)
    low.elementwise(at, Op.POINTWISE, [apart], degree=2.0)


def _bias(low: Lowering, at: Step) -> None:
    """A vector added along the last axis, or along the second where channels come first."""
    rank = low.rank(at.outputs[0])
    axis = 1 if at.attr("data_format") == b"NCHW" else rank - 1
    low.emit(at, Op.ADD, at.inputs, [identity(rank), tuple(0 if i == axis else -1 for i in range(rank))])


def _power(low: Lowering, at: Step) -> None:
    exponent = low.uniform(at.inputs[1])
    if exponent is None:
        low.elementwise(at, Op.POINTWISE, at.inputs)
    else:
        low.elementwise(at, Op.POINTWISE, at.inputs[:1], degree=exponent)


def _reduce(low: Lowering, at: Step) -> None:
    rank, out = low.rank(at.inputs[0]), low.rank(at.outputs[0])
    given = low.integers(at.inputs[1])
    if given is None:
        low.opaque(at)
        return
    axes = without(rank, given)
    if out == rank and len(axes) < rank:  # the axes that are gone stay, of size one
        axes = tuple(i if i in axes else -1 for i in range(rank))
    low.emit(at, Op.REDUCE, at.inputs[:1], [axes], degree=REDUCTIONS[at.name], sums=at.name == "Sum")


def _product(transposed: tuple[str, str]) -> Rule:
    """The product of matrices, and of stacks of them."""

    def rule(low: Lowering, at: Step) -> None:
        axes: list[Axes | None] = []
        out = low.shape(at.outputs[0])
        for i, name in enumerate(transposed):
            shape = low.shape(at.inputs[i])
            rank = len(shape)
            kept = rank - 2 if (i == 0) != bool(at.attr(name)) else rank - 1
            batch = broadcast(shape[:-2], out[:-2]) if rank > 2 or len(out) == 2 else (-1,) * (len(out) - 2)
            axes.append((*(batch or ()), *((kept, -1) if i == 0 else (-1, kept))))
        low.emit(at, _product_op(low, at, axes), at.inputs[:2], axes)

    return rule


def _product_op(low: Lowering, at: Step, axes: Sequence[Axes | None]) -> Op:
    """Without a sum it is a multiplication; and where one operand is one element, its sum has one term."""
    shapes = [low.shape(v) for v in at.inputs[:2]]
    one = any(prod(shape) == 1 for shape in shapes)
    summed = any(set(range(len(shape))) - set(own or ()) for shape, own in zip(shapes, axes, strict=True))
    return Op.DOT if summed and not one else Op.MUL


def _einsum(low: Lowering, at: Step) -> None:
    equation = tf.compat.as_str(at.attr("equation"))
    axes = einsum(equation, [low.rank(v) for v in at.inputs])
    if axes is None:
        low.opaque(at)
    elif len(at.inputs) == 2:
        low.emit(at, _product_op(low, at, axes), at.inputs, axes)
    elif low.rank(at.inputs[0]) == low.rank(at.outputs[0]):
        low.emit(at, Op.LAYOUT, at.inputs, axes)
    else:
        low.emit(at, Op.REDUCE, at.inputs, axes, degree=1.0, sums=True)


def _softmax(low: Lowering, at: Step) -> None:
    rank = low.rank(at.outputs[0])
    low.emit(at, Op.SOFTMAX, at.inputs, [identity(rank)], axis=rank - 1)


def _loss(low: Lowering, at: Step) -> None:
    """Cross entropy of logits, label by label or against a distribution; its second result is the gradient."""
    rank = low.rank(at.inputs[0])
    kept = identity(low.rank(at.outputs[0]))
    low.emit(at, Op.LOSS, at.inputs, [kept, None], at.outputs, axis=rank - 1)


def _select(low: Lowering, at: Step) -> None:
    condition, *cases = at.inputs
    if at.name == "Select" and low.rank(condition) not in (0, low.rank(cases[0])):
        low.opaque(at)  # the condition is about rows
    else:
        chosen(low, at, condition, cases, KEPT)


def _mask_of(low: Lowering, at: Step) -> None:
    low.emit(at, Op.MASK, at.inputs[:1], [identity(low.rank(at.outputs[0]))])


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "AddV2"), arithmetic(Op.ADD)),
    "Sub": arithmetic(Op.SUB),
    **dict.fromkeys(("Mul", "MulNoNan"), arithmetic(Op.MUL)),
    **dict.fromkeys(("Div", "RealDiv", "DivNoNan"), arithmetic(Op.DIV)),
    **dict.fromkeys(("AddN", "AccumulateNV2"), _sum_of_many),
    "Neg": negated,
    "Bitcast": bits_read_anew,
    "SquaredDifference": _squared_difference,
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias),
    "Pow": _power,
    **dict.fromkeys(("Maximum", "Minimum"), bounded),
    "Tanh": lambda low, at: low.elementwise(at, Op.TANH, at.inputs),
    "Sigmoid": lambda low, at: low.elementwise(at, Op.SIGMOID, at.inputs),
    "MatMul": _product(("transpose_a", "transpose_b")),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product(("adj_x", "adj_y"))),
    "Einsum": _einsum,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"), _loss),
    **dict.fromkeys(("Select", "SelectV2"), _select),
    **dict.fromkeys(("MatrixBandPart", "MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), _mask_of),
    **dict.fromkeys(("Const", "Range", "LinSpace", "VarIsInitializedOp", "Empty"), _made),
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank", "VariableShape"), _size),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), branches),
    **dict.fromkeys(("While", "StatelessWhile"), loop),
    **layout.RULES,
    **INDEXING,
    **LISTS,
    **STATES,
}
