"""The same inputs at another length: what is constant must come out the same.

A traced program sees shapes and no values, so lengths are all that a number could have come from.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax.kinds.tree import Tree, is_abstract, is_key

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def shorter_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Arguments]:
    """Crops of every sequence axis, to different lengths.

    The sequence length is the last axis of the first integer array; every axis of that size in any array is cropped
    with it. The first try changes the batch as well; for programs of one length the last but one changes the batch
    alone, and the last is the arguments themselves.
    """
    tree = Tree((args, dict(kwargs)))
    arrays = [a for a in tree.arrays if not is_key(a)]
    ids = next((a for a in arrays if np.dtype(a.dtype).kind in "iu" and a.ndim and a.shape[-1] > 1), None)
    if ids is not None:
        length = int(ids.shape[-1])
    else:
        ids = next((a for a in arrays if a.ndim > 1 and a.shape[1] > 1), None)
        length = 0 if ids is None else int(ids.shape[1])
    lengths = [n for n in dict.fromkeys((length - 1, length - 2, (length * 3) // 4, length // 2, 1)) if 0 < n < length]
    batch = int(ids.shape[0]) if ids is not None and ids.ndim > 1 else 0

    def all_changed(n: int, rows: int) -> Arguments:
        changed = [a if is_key(a) else _changed(a, (length, n), (batch, rows)) for a in tree.arrays]
        again: Arguments = tree.rebuilt(changed)
        return again

    other = batch - 1 if batch > 1 else 2  # the batch may be what a number came from, too
    tries = [all_changed(n, other) for n in lengths[:1]] if batch else []
    alone = [all_changed(length, other)] if batch else []
    return [*tries, *(all_changed(n, batch) for n in lengths), *alone, (args, dict(kwargs))]


def _changed(array: Any, length: tuple[int, int], batch: tuple[int, int]) -> Any:
    shape = list(array.shape)
    for axis, size in enumerate(shape):
        if size == length[0] and (axis or len(shape) == 1 or size != batch[0]):
            shape[axis] = length[1]
    if batch[0] and shape and array.shape[0] == batch[0]:
        shape[0] = batch[1]
    if is_abstract(array):
        return jax.eval_shape(lambda: jnp.zeros(shape, array.dtype))
    host = np.asarray(array)
    for axis, size in enumerate(shape):
        host = np.take(host, np.arange(size) % host.shape[axis], axis=axis)
    return host
