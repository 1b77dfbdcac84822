"""Axes behind operations that state shapes alone: every axis has a size of its own, so that sizes tell."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.backends.graphs.axes import regrouped, with_new, without

SIZES = (2, 3, 5, 7)
shapes = st.permutations(SIZES).flatmap(lambda s: st.integers(1, 4).map(lambda n: tuple(s[:n])))


@given(shape=shapes, data=st.data())
def test_a_reshape_that_splits_and_merges_knows_its_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(shape) - 1))
    stop = data.draw(st.integers(cut + 1, len(shape)))
    merged = (*shape[:cut], int(np.prod(shape[cut:stop])), *shape[stop:])
    assert regrouped(shape, merged) == (*range(cut), cut, *range(stop, len(shape)))
    assert regrouped(merged, shape) == (
        *range(cut),
        *(cut,) * (stop - cut),
        *(cut + 1 + i for i in range(len(shape) - stop)),
    )


@given(shape=shapes, data=st.data())
def test_an_axis_that_is_put_in_and_taken_out_again_leaves_the_others_where_they_were(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(shape)))
    wider, axes = np.expand_dims(np.empty(shape), place).shape, with_new(len(shape) + 1, place)
    assert [shape[a] if a >= 0 else 1 for a in axes] == list(wider)
    assert [wider[a] for a in without(len(wider), [place - len(wider)])] == list(shape)
