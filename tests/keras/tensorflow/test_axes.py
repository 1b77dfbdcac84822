"""Which axis is which: every axis of an operand has a size of its own, so that sizes tell."""

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.backends.keras.tensorflow.lowering.axes import broadcast, einsum
from tiebeam.backends.keras.tensorflow.lowering.lower import Lowering, lower
from tiebeam.ir import Graph, Op, Origin

SIZES = (2, 3, 5, 7)
shapes = st.permutations(SIZES).flatmap(lambda s: st.integers(1, 4).map(lambda n: tuple(s[:n])))


def lowered(function: Any, *shapes: tuple[int, ...], dtype: Any = tf.float32) -> Graph:
    """The graph of a function of arrays."""
    made = tf.function(function, autograph=False).get_concrete_function(*[tf.TensorSpec(s, dtype) for s in shapes])
    low = Lowering(lambda _: "", {}, {})
    for tensor in made.graph.inputs:
        low.ids[tensor.name] = low.add(tensor.shape.as_list(), tensor.dtype.name, Origin.INPUT, given=True)
    lower(low, made.graph)
    graph = low.graph(inputs=tuple(range(len(shapes))), outputs=tuple(low.ids[t.name] for t in made.graph.outputs))
    graph.validate()
    return graph


@given(shape=shapes, data=st.data())
def test_a_strided_slice_knows_its_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    entry = st.sampled_from([slice(None), 0, None])
    index = data.draw(st.lists(entry, max_size=6).filter(lambda e: sum(x is not None for x in e) <= len(shape)))
    if data.draw(st.booleans()):
        index.insert(data.draw(st.integers(0, len(index))), Ellipsis)
    graph = lowered(lambda x: x[tuple(index)], shape)
    for node in graph.nodes:
        axes = node.axes[0]
        if node.op is Op.LAYOUT and node.inputs == (0,) and axes is not None:
            out = graph.values[node.output].shape
            assert out == np.empty(shape)[tuple(index)].shape
            assert all(n == (1 if a < 0 else shape[a]) for a, n in zip(axes, out, strict=True))


@given(shape=shapes, batch=st.integers(0, 2), data=st.data())
def test_a_gather_knows_its_axes(shape: tuple[int, ...], batch: int, data: st.DataObject) -> None:
    batch = min(batch, len(shape) - 1)
    axis = data.draw(st.integers(batch, len(shape) - 1))
    indices = (*shape[:batch], *data.draw(st.sampled_from([(11,), (11, 13), ()])))

    def gather(x: Any, i: Any) -> Any:
        return tf.gather(x, tf.cast(i, tf.int32), axis=axis, batch_dims=batch)

    graph = lowered(gather, shape, indices)
    (node,) = [n for n in graph.nodes if n.op is Op.GATHER]
    out = graph.values[node.output].shape
    of_operand, of_indices = node.axes[:2]
    assert node.axis == axis
    assert of_operand is not None
    assert of_indices is not None
    for n, a, b in zip(out, of_operand, of_indices, strict=True):
        assert (a >= 0) or (b >= 0)
        assert a < 0 or n == shape[a]
        assert b < 0 or n == indices[b]


@given(order=st.permutations("abcd"), shared=st.integers(0, 3))
def test_a_contraction_knows_its_axes(order: list[str], shared: int) -> None:
    size = dict(zip("abcd", SIZES, strict=True))
    left, right = order[: 2 + shared // 2], order[1 + shared // 2 :]
    out = [c for c in order if (c in left) != (c in right)]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    found = einsum(equation, (len(left), len(right)))
    assert found is not None
    for term, axes in zip((left, right), found, strict=True):
        assert [term[a] if a >= 0 else None for a in axes] == [c if c in term else None for c in out]
    made = np.einsum(equation, *(np.empty([size[c] for c in term]) for term in (left, right)))
    assert made.shape == tuple(size[c] for c in out)


def test_a_letter_twice_is_no_contraction() -> None:
    assert einsum("aab,b->a", (3, 1)) is None


@given(shape=shapes, data=st.data())
def test_an_operand_is_aligned_at_the_right(shape: tuple[int, ...], data: st.DataObject) -> None:
    ones = [n if data.draw(st.booleans()) else 1 for n in shape[data.draw(st.integers(0, len(shape) - 1)) :]]
    axes = broadcast(tuple(ones), shape)
    assert axes is not None
    stretched = np.broadcast_to(np.arange(np.prod(ones)).reshape(ones), shape)
    for k, a in enumerate(axes):
        moves = stretched.shape[k] > 1 and not np.array_equal(np.take(stretched, 0, k), np.take(stretched, 1, k))
        assert moves == (a >= 0)
