"""Inputs of a Keras model: as arguments, as an example, and at other lengths. NumPy and Keras' own trees."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from tiebeam.errors import InputError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Make = Callable[[str, tuple[int | None, ...], str], Any]


def arguments(model: keras.Layer, inputs: Any) -> Arguments:
    """Inputs as arguments, NumPy arrays turned into tensors.

    A tuple is positional; anything else is Keras' one positional argument, a dictionary too. A model made with
    several inputs takes them as one argument: a tuple of that many is it.

    Raises:
        InputError: An input is symbolic.
    """
    for leaf in keras.tree.flatten(inputs):
        if isinstance(leaf, keras.KerasTensor):
            raise InputError(
                "the inputs are symbolic",
                got=f"a KerasTensor of shape {leaf.shape}",
                expected="arrays of token ids",
                hint="pass an array, or leave inputs out: they are made as the model's own inputs say",
            )
    several = getattr(model, "inputs", None)
    if isinstance(inputs, tuple) and not (isinstance(several, list) and 1 < len(several) == len(inputs)):
        return tuple(_tensors(v) for v in inputs), {}
    return (_tensors(inputs),), {}


def _tensors(tree: Any) -> Any:
    return keras.tree.map_structure(
        lambda v: keras.ops.convert_to_tensor(v) if isinstance(v, np.ndarray | np.generic) else v, tree
    )


def example(model: keras.Layer, make: Make) -> Any:
    """Inputs by the model's own signature, or None where it has none.

    Args:
        make: Makes an array of a name, a shape (None: any size) and a dtype ("": unknown).
    """
    symbolic = getattr(model, "inputs", None)
    if symbolic:
        structure = getattr(model, "input", symbolic[0])  # a sequential model has one, and no structure

        def one(t: Any) -> Any:
            return make(t.name, tuple(t.shape), keras.backend.standardize_dtype(t.dtype))

        return _one_argument(keras.tree.map_structure(one, structure))
    shapes = _built_with(model)
    if shapes is None:
        return None
    made = [_from_shapes(name.removesuffix("_shape"), shape, make) for name, shape in shapes.items()]
    return tuple(made) if len(made) > 1 else _one_argument(made[0])


def _one_argument(made: Any) -> Any:
    """A tuple would be several arguments."""
    return (made,) if isinstance(made, tuple) else made


def _built_with(model: keras.Layer) -> dict[str, Any] | None:
    config = model.get_build_config() or {}
    shapes = config.get("shapes_dict") or {k: v for k, v in config.items() if k == "input_shape"}
    known = {k: v for k, v in shapes.items() if v is not None}
    return known or None


def _from_shapes(name: str, shapes: Any, make: Make) -> Any:
    """Arrays in the place of shapes."""
    if isinstance(shapes, Mapping):
        return {k: _from_shapes(str(k), v, make) for k, v in shapes.items()}
    if all(n is None or isinstance(n, int) for n in shapes):
        return make(name, tuple(shapes), "")
    return [_from_shapes(name, s, make) for s in shapes]


def shorter(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Arguments]:
    """The same inputs at other lengths, with other values, best first: what is constant must come out the same.

    The sequence length is the last axis of the integer arrays (else the second axis of the first that has one); every
    axis of such a size is cropped. The first try changes the batch as well; the last two leave the length, for models
    that take one: they change the batch, and values alone.
    """
    leaves = keras.tree.flatten((args, dict(kwargs)))
    places = [i for i, v in enumerate(leaves) if keras.ops.is_tensor(v) or isinstance(v, np.ndarray)]
    arrays = [host(leaves[i]) for i in places]
    lengths = {a.shape[-1] for a in arrays if a.dtype.kind in "iu" and a.ndim}
    lengths = lengths or {a.shape[1] for a in arrays[:1] if a.ndim > 1}
    first = next((a for a in arrays if a.ndim and lengths.intersection(a.shape)), None)
    if first is None or not all(a.size for a in arrays):
        return []
    batch = first.shape[0] if first.ndim > 1 else 0

    def all_changed(cut: float, rows: int) -> Arguments:
        sizes = {n: max(1, n - int(cut) if cut >= 1 else int(n * (1 - cut))) for n in lengths}
        changed = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            dtype = keras.backend.standardize_dtype(leaves[i].dtype)
            changed[i] = keras.ops.convert_to_tensor(_changed(array, sizes, batch, rows), dtype=dtype)
        again: Arguments = keras.tree.pack_sequence_as((args, dict(kwargs)), changed)
        return again

    other = batch - 1 if batch > 1 else 2
    tries = [all_changed(1, other)] if batch else []
    tries += [all_changed(cut, batch) for cut in (1, 2, 0.25, 0.5)]
    return [*tries, *([all_changed(0, other)] if batch else []), all_changed(0, batch)]


def host(tensor: Any) -> Any:
    """A tensor in NumPy: Keras' own way warns on PyTorch, and NumPy alone knows no bfloat16."""
    if keras.backend.standardize_dtype(tensor.dtype) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    return np.asarray(tensor.detach().cpu() if hasattr(tensor, "detach") else tensor)


def _changed(array: Any, sizes: Mapping[int, int], batch: int, rows: int) -> Any:
    array = _other_values(array)
    for axis, size in enumerate(array.shape):
        if size in sizes and (axis or array.ndim == 1 or size != batch):
            array = np.take(array, range(sizes[size]), axis=axis)
    if batch and array.ndim and array.shape[0] == batch:
        array = np.take(array, np.arange(rows) % batch, axis=0)
    return array


def _other_values(array: Any) -> Any:
    """Ids in reverse, the smallest and the largest replaced by their neighbours: each reading of them changes.

    What holds zeros and ones alone is a mask or a segment, and stays.
    """
    values, places = np.unique(array, return_inverse=True)
    if array.dtype.kind not in "iu" or len(values) < 2 or values.tolist() == [0, 1]:
        return array
    if len(values) < 4:
        return values[::-1][places].reshape(array.shape)
    values = np.concatenate([values[1:2], values[1:-1], values[-2:-1]])
    return values[places].reshape(array.shape)[..., ::-1]
