"""Graphs by hand: a fluent builder that keeps shapes, axes and gradients as a backend would, and validates."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tiebeam.ir import Axes, Graph, Leaf, Node, Op, Origin, Value

V, D, B, T = 48, 16, 2, 6  # vocabulary, width, batch and length of every small model here
EPSILON = 1e-6

Shape = tuple[int, ...]
Operand = int | float  # the id of a value, or (a float) a number of the program


class Build:
    """Appends values and nodes; every method returns the id of the value it made.

    Ids are ints and numbers of the program are floats: `g.mul(x, 8.0)`. `logits_of` and friends below make
    whole models of it.
    """

    def __init__(self, *, meta: bool = False) -> None:
        self.meta = meta
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.grad: list[bool] = []
        self.inputs: list[int] = []
        self.outputs: tuple[int, ...] = ()
        self._where, self._recorded = "", True

    # What stands at the beginning.

    def _value(self, shape: Shape, dtype: str, origin: Origin, *, grad: bool = False, **facts: object) -> int:
        self.values.append(Value(len(self.values), shape, dtype, origin, **facts))  # type: ignore[arg-type]
        self.grad.append(grad)
        return len(self.values) - 1

    def input_ids(self, shape: Shape = (B, T), dtype: str = "int64") -> int:
        self.inputs.append(self._value(shape, dtype, Origin.INPUT))
        return self.inputs[-1]

    def input(self, shape: Shape, dtype: str = "float32") -> int:
        return self.input_ids(shape, dtype)

    def leaf(self, name: str, shape: Shape, *, dtype: str = "float32", number: float | None = None, lost: bool = False,
             aliases: Sequence[str] = (), key: int | None = None, storage: int | None = None,
             span: tuple[int, int] | None = None, trainable: bool = True, parameter: bool = True,
             fetched: bool = False) -> int:  # fmt: skip
        """A parameter; a buffer with `parameter=False`. Equal `storage` and overlapping `span` are shared memory."""
        at = len(self.values)
        leaf = Leaf(
            names=(name, *aliases),
            key=at if key is None else key,
            storage=at if storage is None else storage,
            span=(0, math.prod(shape)) if span is None else span,
            trainable=trainable and parameter,
            parameter=parameter,
            fetched=fetched,
        )
        return self._value(shape, dtype, Origin.LEAF, grad=leaf.trainable, leaf=leaf, number=number, lost=lost)

    def buffer(self, name: str, shape: Shape = (), **facts: object) -> int:
        return self.leaf(name, shape, parameter=False, **facts)  # type: ignore[arg-type]

    def constant(self, shape: Shape = (), number: float | None = None, dtype: str = "float32") -> int:
        """A tensor that the program made from nothing."""
        return self._value(shape, dtype, Origin.CONSTANT, number=number)

    def arange(self, n: int) -> int:
        return self.constant((n,), dtype="int64")

    def random(self, shape: Shape) -> int:
        return self._value(shape, "float32", Origin.RANDOM)

    def literal(self, number: float) -> int:
        return self._value((), "float32", Origin.LITERAL, number=number)

    # How things run.

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """Inside the forward of the module at this path."""
        before, self._where = self._where, where
        yield
        self._where = before

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self._recorded = self._recorded, False
        yield
        self._recorded = before

    def shape(self, value: int) -> Shape:
        return self.values[value].shape

    def _id(self, operand: Operand) -> int:
        return self.literal(operand) if isinstance(operand, float) else operand

    def node(self, op: Op, operands: Sequence[Operand], axes: Sequence[Axes | None], shape: Shape, *,
             dtype: str = "", grad: bool | None = None, number: float | None = None, lost: bool = False,
             label: str = "", **facts: object) -> int:  # fmt: skip
        """Any node; `grad` says whether its output carries a gradient, where autograd's own rule does not hold."""
        inputs = tuple(map(self._id, operands))
        dtype = dtype or self.values[inputs[0]].dtype
        if grad is None:
            grad = self._recorded and any(self.grad[v] for v in inputs)
        out = self._value(shape, dtype, Origin.NODE, grad=grad, producer=len(self.nodes), number=number, lost=lost)
        attached = tuple(None if self.values[v].origin is Origin.LITERAL else self.grad[v] for v in inputs)
        self.nodes.append(
            Node(len(self.nodes), op, inputs, (out,), tuple(axes), label or op.name.lower(), self._where,
                 attached=attached, recorded=self._recorded, **facts)  # type: ignore[arg-type]
        )  # fmt: skip
        return out

    def elementwise(self, op: Op, *operands: Operand, **facts: object) -> int:
        ids = [self._id(o) for o in operands]
        shape = _broadcast([self.shape(v) for v in ids])
        axes = [_aligned(self.shape(v), shape) if self.shape(v) else None for v in ids]
        if "dtype" not in facts:
            facts["dtype"] = next(
                (self.values[v].dtype for v in ids if not self.values[v].integral), self.values[ids[0]].dtype
            )
        return self.node(op, ids, axes, shape, **facts)  # type: ignore[arg-type]

    # Arithmetic.

    def add(self, a: Operand, b: Operand) -> int:
        return self.elementwise(Op.ADD, a, b)

    def sub(self, a: Operand, b: Operand) -> int:
        return self.elementwise(Op.SUB, a, b)

    def mul(self, a: Operand, b: Operand) -> int:
        return self.elementwise(Op.MUL, a, b)

    def div(self, a: Operand, b: Operand) -> int:
        return self.elementwise(Op.DIV, a, b)

    def neg(self, x: int) -> int:
        return self.mul(x, -1.0)

    def tanh(self, x: int) -> int:
        return self.elementwise(Op.TANH, x)

    def sigmoid(self, x: int) -> int:
        return self.elementwise(Op.SIGMOID, x)

    def pointwise(self, x: int, degree: float | None = None, **facts: object) -> int:
        return self.elementwise(Op.POINTWISE, x, degree=degree, **facts)

    def compare(self, a: int, b: int) -> int:
        return self.elementwise(Op.POINTWISE, a, b, dtype="bool", label="eq")

    def mask(self, x: int, condition: int | None = None) -> int:
        if condition is None:
            condition = self.constant(self.shape(x), dtype="bool")
        return self.elementwise(Op.MASK, x, condition)

    def update(self, x: int, by: int) -> int:
        return self.elementwise(Op.UPDATE, x, by)

    def dropout(self, x: int) -> int:
        return self.elementwise(Op.DROPOUT, x)

    # Layout.

    def cast(self, x: int, dtype: str = "bfloat16") -> int:
        return self.elementwise(Op.CAST, x, dtype=dtype)

    def layout(self, x: int, shape: Shape, axes: Axes, **facts: object) -> int:
        return self.node(Op.LAYOUT, [x], [axes], shape, **facts)  # type: ignore[arg-type]

    def transpose(self, x: int, a: int = -2, b: int = -1) -> int:
        axes = list(range(len(self.shape(x))))
        axes[a], axes[b] = axes[b], axes[a]
        return self.layout(x, tuple(self.shape(x)[i] for i in axes), tuple(axes))

    def flatten(self, x: int) -> int:
        """(B, T, n) -> (B*T, n): the merged axis counts as the outermost of its parts."""
        b, t, n = self.shape(x)
        return self.layout(x, (b * t, n), (0, 2))

    def unflatten(self, x: int, b: int = B) -> int:
        rows, n = self.shape(x)
        return self.layout(x, (b, rows // b, n), (0, 0, 1))

    def slice(self, x: int, axis: int, size: int) -> int:
        shape = list(self.shape(x))
        shape[axis] = size
        return self.layout(x, tuple(shape), tuple(range(len(shape))), label="slice")

    def select(self, x: int, axis: int) -> int:
        kept = [i for i in range(len(self.shape(x))) if i != axis % len(self.shape(x))]
        return self.layout(x, tuple(self.shape(x)[i] for i in kept), tuple(kept), label="select")

    def expand(self, x: int, shape: Shape) -> int:
        return self.layout(x, shape, _aligned(self.shape(x), shape), label="expand")

    def concat(self, *parts: int, axis: int) -> int:
        shape = list(self.shape(parts[0]))
        axis %= len(shape)
        shape[axis] = sum(self.shape(p)[axis] for p in parts)
        same = tuple(range(len(shape)))
        return self.node(Op.CONCAT, parts, [same] * len(parts), tuple(shape), axis=axis)

    def detach(self, x: int) -> int:
        return self.layout(x, self.shape(x), tuple(range(len(self.shape(x)))), grad=False, label="detach")

    # Reductions.

    def reduce(self, x: int, axis: int = -1, *, keep: bool = True, sums: bool = True, degree: float | None = 1.0,
               dtype: str = "") -> int:  # fmt: skip
        rank = len(self.shape(x))
        axis %= rank
        shape = tuple(1 if i == axis else n for i, n in enumerate(self.shape(x)))
        axes = tuple(-1 if i == axis else i for i in range(rank))
        if not keep:
            shape, axes = (tuple(s for i, s in enumerate(a) if i != axis) for a in (shape, axes))
        return self.node(Op.REDUCE, [x], [axes], shape, degree=degree, sums=sums, dtype=dtype)

    def mean(self, x: int, axis: int = -1) -> int:
        return self.mul(self.reduce(x, axis), 1.0 / self.shape(x)[axis])

    def softmax(self, x: int, axis: int = -1) -> int:
        rank = len(self.shape(x))
        return self.node(Op.SOFTMAX, [x], [tuple(range(rank))], self.shape(x), axis=axis % rank)

    def loss(self, logits: int, targets: int) -> int:
        return self.node(Op.LOSS, [logits, targets], [None, None], (), axis=len(self.shape(logits)) - 1)

    def opaque(self, *operands: int, shape: Shape | None = None) -> int:
        return self.node(
            Op.OPAQUE, operands, [None] * len(operands), self.shape(operands[0]) if shape is None else shape
        )

    # Roles.

    def gather(self, table: int, ids: int, axis: int = 0) -> int:
        """Rows of a table: ids (...) -> (..., width)."""
        n, width = len(self.shape(ids)), self.shape(table)[1 - axis]
        axes = ((-1,) * n + (1 - axis,), (*range(n), -1))
        return self.node(
            Op.GATHER, [table, ids], axes, (*self.shape(ids), width), axis=axis, dtype=self.values[table].dtype
        )

    def one_hot(self, ids: int, vocab: int = V) -> int:
        wide = self.layout(ids, (*self.shape(ids), 1), (*range(len(self.shape(ids))), -1))
        return self.cast(self.compare(wide, self.arange(vocab)), "float32")

    def dot(self, x: int, weight: int, axis: int = 1) -> int:
        """x (..., n) times a weight matrix, summed over the weight's `axis`: 1 as in `x @ W.T`, 0 as in `x @ W`."""
        lead = len(self.shape(x)) - 1
        axes = ((*range(lead), -1), ((-1,) * lead + (1 - axis,)))
        return self.node(Op.DOT, [x, weight], axes, (*self.shape(x)[:-1], self.shape(weight)[1 - axis]), label="linear")

    def table_on_the_left(self, table: int, x: int) -> int:
        """table (V, D) times x (D, n): (V, n)."""
        return self.node(Op.DOT, [table, x], [(0, -1), (-1, 1)], (self.shape(table)[0], self.shape(x)[1]), label="mm")

    # Parts of models.

    def norm(self, x: int, gain: int | None = None, bias: int | None = None) -> int:
        """A fused normalisation."""
        operands = [v for v in (x, gain, bias) if v is not None]
        axes = [tuple(range(len(self.shape(x)))), *[None] * (len(operands) - 1)]
        return self.node(Op.NORMALIZE, operands, axes, self.shape(x))

    def decomposed_rms_norm(self, x: int, gain: int | None = None) -> int:
        mean = self.mean(self.pointwise(x, 2.0, label="square"))
        y = self.mul(x, self.pointwise(self.add(mean, EPSILON), -0.5, label="rsqrt"))
        return y if gain is None else self.mul(y, gain)

    def decomposed_layer_norm(self, x: int, gain: int | None = None, bias: int | None = None) -> int:
        centred = self.sub(x, self.mean(x))
        variance = self.mean(self.pointwise(centred, 2.0, label="square"))
        y = self.div(centred, self.pointwise(self.add(variance, EPSILON), 0.5, label="sqrt"))
        y = y if gain is None else self.mul(y, gain)
        return y if bias is None else self.add(y, bias)

    def decomposed_l2_norm(self, x: int) -> int:
        size = self.reduce(x, sums=False, degree=1.0)
        return self.div(x, self.pointwise(size, 1.0, label="clamp_min"))

    def residual(self, x: int, name: str = "layers.0") -> int:
        """A pre-norm block: x + W norm(x)."""
        with self.at(f"{name}.norm"):
            y = self.norm(x)
        with self.at(f"{name}.linear"):
            y = self.dot(y, self.leaf(f"{name}.linear.weight", (self.shape(x)[-1],) * 2))
        with self.at(name):
            return self.add(x, y)

    # The end.

    def returned(self, *values: int) -> "Build":
        self.outputs = values
        return self

    def graph(self, **facts: object) -> Graph:
        """The graph, validated."""
        attached = frozenset(v for v in self.outputs if self.grad[v])
        graph = Graph(
            tuple(self.values), tuple(self.nodes), tuple(self.inputs), self.outputs, attached,
            meta=self.meta, **facts,  # type: ignore[arg-type]
        )  # fmt: skip
        graph.validate()
        return graph


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    out = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    if any(n not in (1, out[i]) for s in padded for i, n in enumerate(s)):
        raise ValueError(f"shapes {shapes} do not broadcast")
    return out


def _aligned(shape: Shape, out: Shape) -> Axes:
    shift = len(out) - len(shape)
    return tuple(
        i - shift if i >= shift and (shape[i - shift] == n or shape[i - shift] != 1) else -1 for i, n in enumerate(out)
    )


Step = Callable[[Build, int], int]


def keep(g: Build, x: int) -> int:
    return x


def model(
    g: Build | None = None, *, rows: Step = keep, table: Step = keep, hidden: Step = keep, logits: Step = keep,
    norm: Step = Build.norm, body: Step = Build.residual, head: str = "", name: str = "embed.weight",
) -> Build:  # fmt: skip
    """A tied language model with a place for steps after the lookup, on the table, before and after the readout.

    Args:
        norm: The normalisation before the readout.
        head: Name of a readout table of its own; "" ties.
    """
    g = g or Build()
    embed = g.leaf(name, (V, D))
    with g.at(name.rpartition(".")[0]):
        x = g.gather(embed, g.input_ids())
    x = rows(g, x)
    x = body(g, x)
    with g.at("norm"):
        x = norm(g, x)
    x = hidden(g, x)
    weight = table(g, g.leaf(head, (V, D)) if head else embed)
    with g.at(head.rpartition(".")[0]):
        z = g.dot(x, weight)
    return g.returned(logits(g, z))
