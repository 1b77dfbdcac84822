"""Reading at indices: which axis a `gather` or a `dynamic_slice` really works along."""

from collections.abc import Sequence

from tiebeam.backends.graphs.axes import identity
from tiebeam.backends.graphs.rules import columns
from tiebeam.backends.jax.lowering.lower import Equation, Lowering
from tiebeam.ir import Axes, Op


def gather(low: Lowering, at: Equation) -> None:
    """A gather along the one axis whose index is no constant; along several it is a rearrangement."""
    numbers, sizes = at.params["dimension_numbers"], at.params["slice_sizes"]
    shape, index_shape = low.shape(at.inputs[0]), low.shape(at.inputs[1])
    rank = low.rank(at.outputs[0])
    # An axis that is taken whole is not indexed, whatever its index says: it could only start at 0.
    indexed = [(k, d) for k, d in enumerate(numbers.start_index_map) if sizes[d] != shape[d] or shape[d] == 1]
    long = [(k, d) for k, d in indexed if shape[d] != 1] or indexed
    pieces = columns(low, at.inputs[1])
    moving = [(k, d) for k, d in long if pieces is None or low.drafts[pieces[k]].varying]
    axes, index_axes = _axes(numbers, sizes, shape, len(index_shape), rank)
    if len(moving) == 1 and sizes[moving[0][1]] == 1:
        column, axis = moving[0]
        index = at.inputs[1] if pieces is None else pieces[column]
        gathered = tuple(-1 if a == axis else a for a in axes)
        low.emit(at, Op.GATHER, [at.inputs[0], index], [gathered, index_axes], axis=axis)
    else:
        low.emit(at, Op.LAYOUT, at.inputs, [axes, *[None] * (len(at.inputs) - 1)])


def _axes(
    numbers: object, sizes: Sequence[int], shape: tuple[int, ...], index_rank: int, rank: int
) -> tuple[Axes, Axes]:
    """Axes of the operand and of the indices (whose last axis is the index itself) in the output."""
    offset, collapsed, batching, index_batching = (
        tuple(getattr(numbers, n))
        for n in ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims")
    )
    axes, index_axes = [-1] * rank, [-1] * rank
    kept = [d for d in range(len(shape)) if d not in (*collapsed, *batching)]
    for out, d in zip(offset, kept, strict=True):
        axes[out] = d if sizes[d] == shape[d] or sizes[d] > 1 else -1
    for out, i in zip([o for o in range(rank) if o not in offset], range(index_rank - 1), strict=True):
        index_axes[out] = i
        if i in index_batching:
            axes[out] = batching[index_batching.index(i)]
    return tuple(axes), tuple(index_axes)


def dynamic_slice(low: Lowering, at: Equation) -> None:
    """One row at a place that is no constant is a gather; a longer piece is a slice."""
    operand, *starts = at.inputs
    shape, sizes = low.shape(operand), at.params["slice_sizes"]
    cut = [d for d in range(len(shape)) if sizes[d] != shape[d]]
    moving = [d for d in cut if low.drafts[starts[d]].varying]
    rank = len(shape)
    if len(moving) == 1 and sizes[moving[0]] == 1:
        axis = moving[0]
        axes = tuple(-1 if i == axis else i for i in range(rank))
        low.emit(at, Op.GATHER, [operand, starts[axis]], [axes, None], axis=axis)
    else:
        low.emit(at, Op.LAYOUT, at.inputs, [identity(rank), *[None] * len(starts)])
