"""Operations that read or write at indices, or choose entries, in core's words."""

from tiebeam.backends.torch.lowering.builder import Lowering, broadcast, refs_of
from tiebeam.backends.torch.lowering.views import identity
from tiebeam.backends.torch.recording.record import Record, Ref
from tiebeam.ir import Axes, Op

#: What picks entries along an axis: the position of that axis among the arguments.
CHOICES = {"topk": 2, "kthvalue": 2, "median": 1, "nanmedian": 1, "mode": 1, "multinomial": 9}


def embedding(low: Lowering, record: Record) -> None:
    """Rows of a table."""
    table, ids = record.args[:2]
    rank = len(low.shape(record.outputs[0]))
    index = broadcast(low.shape(ids.value), low.shape(record.outputs[0])[:-1])
    low.emit(Op.GATHER, [table, ids], [(*(-1,) * (rank - 1), 1), (*index, -1)], record.outputs, axis=0)


def embedding_bag(low: Lowering, record: Record) -> None:
    """Sums of rows of a table."""
    table, ids = record.args[:2]
    rows = low.temporary((*low.shape(ids.value), low.shape(table.value)[1]), table.value)
    rank = len(low.shape(ids.value))
    low.emit(Op.GATHER, [table, ids], [(*(-1,) * rank, 1), None], [rows], axis=0)
    out = record.outputs[0]
    low.emit(Op.REDUCE, [(rows, table.attached)], [(-1, rank)], [out], degree=1.0)
    low.barrier(record.outputs[1:])


def index(low: Lowering, record: Record) -> None:
    """`x[i, ..., j]`: one integer index is a gather, a mask or several are a rearrangement."""
    source, indices = record.args[0], record.args[1]
    shape, out = low.shape(source.value), record.outputs[0]
    places = [(k, r) for k, r in enumerate(indices) if isinstance(r, Ref)]
    booleans = [r for _, r in places if str(low.drafts[r.value].geometry[3]) in ("torch.bool", "torch.uint8")]
    rank = len(low.shape(out))
    if len(places) == 1 and not booleans:
        k, ref = places[0]
        width = len(low.shape(ref.value))
        axes = (*range(k), *(-1,) * width, *range(k + 1, len(shape)))
        low.emit(Op.GATHER, [source, ref], [axes, None], [out], axis=k)
        return
    covered: set[int] = set()
    at = 0
    for r in indices:  # a boolean mask covers as many axes as it has
        n = len(low.shape(r.value)) if isinstance(r, Ref) and r in booleans else 1
        covered |= set(range(at, at + n)) if isinstance(r, Ref) else set()
        at += n
    kept = [a for a in range(len(shape)) if a not in covered]
    first = min(covered, default=0)
    adjacent = covered == set(range(first, first + len(covered)))
    lead = [a for a in kept if a < first] if adjacent else []
    axes = (*lead, *(-1,) * (rank - len(kept)), *[a for a in kept if a not in lead])
    refs = [source, *(r for _, r in places)]
    low.emit(Op.LAYOUT, refs, [axes, *[None] * len(places)], [out])


def index_select(low: Lowering, record: Record) -> None:
    """Entries of one axis."""
    source, axis, ids = record.args[:3]
    rank = len(low.shape(source.value))
    axis %= max(rank, 1)
    axes = tuple(-1 if i == axis else i for i in range(rank))
    index = tuple(0 if i == axis else -1 for i in range(rank))
    low.emit(Op.GATHER, [source, ids], [axes, index], record.outputs, axis=axis)


def gather(low: Lowering, record: Record) -> None:
    """One entry of an axis for each place of the index."""
    source, axis, ids = record.args[:3]
    rank = len(low.shape(source.value))
    axis %= max(rank, 1)
    axes = tuple(-1 if i == axis else i for i in range(rank))
    low.emit(Op.GATHER, [source, ids], [axes, identity(rank)], record.outputs, axis=axis)


def update(low: Lowering, record: Record) -> None:
    """A copy with some elements replaced."""
    first, *refs = refs_of(record.args)
    refs.reverse()  # what is put in stands behind the places
    shape = tuple(low.shape(record.outputs[0]))
    same = identity(len(shape))
    axes: list[Axes | None] = [same]
    for r in refs:
        part = tuple(low.shape(r.value))
        if len(part) == len(shape):
            axes.append(same)
        elif record.schema.name == "select_scatter" and r is refs[0]:
            axis = record.args[2] % len(shape)
            axes.append(tuple(-1 if k == axis else k - (k > axis) for k in range(len(shape))))
        else:  # what a mask or several indices pick keeps the axes behind them
            shift = len(shape) - len(part)
            axes.append(
                tuple(k - shift if k >= max(shift, 0) and part[k - shift] == n else -1 for k, n in enumerate(shape))
            )
    number = record.args[3:] if record.schema.name in ("scatter", "index_fill") else ()
    filled = [x for x in number[:1] if not isinstance(x, Ref)]
    axes[1:1] = [None] * len(filled)
    low.emit(Op.UPDATE, [first, *filled, *refs], axes, record.outputs)


def choice(low: Lowering, record: Record) -> None:
    """Some entries of an axis, and where they stood."""
    source, at = record.args[0], CHOICES[record.schema.name]
    rank, kept = len(low.shape(source.value)), len(low.shape(record.outputs[0]))
    axis = (record.args[at] if len(record.args) > at else record.kwargs.get("dim", -1)) % max(rank, 1)
    whole = at == 1 and len(record.args) < 2 and not record.kwargs and len(record.outputs) == 1
    axes = tuple(-1 if i == axis else i for i in range(rank) if kept == rank or i != axis)
    degree = None if record.schema.name == "multinomial" else 1.0
    low.emit(Op.REDUCE, [source], [() if whole else axes], record.outputs, degree=degree)


def in_order(low: Lowering, record: Record) -> None:
    """The entries in another order, or the largest so far, and where they stood."""
    low.emit(Op.LAYOUT, [record.args[0]], [identity(len(low.shape(record.outputs[0])))], record.outputs)


def some(low: Lowering, record: Record) -> None:
    """Some of all entries, axes forgotten, and whatever is said about them."""
    rank = len(low.shape(record.outputs[0]))
    low.emit(Op.LAYOUT, [record.args[0]], [(-1,) * rank], record.outputs)


def binned(low: Lowering, record: Record) -> None:
    """The number of the bin that each entry lies in."""
    entries, bounds = record.args[:2] if record.schema.name == "bucketize" else record.args[1::-1]
    if not isinstance(entries, Ref):  # a number among the bounds
        low.barrier(record.outputs)
        return
    rank = len(low.shape(record.outputs[0]))
    low.emit(Op.POINTWISE, [entries, bounds], [identity(rank), None], record.outputs)
