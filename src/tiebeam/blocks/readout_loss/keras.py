"""The readout loss on whatever Keras runs on."""

from typing import Any

import keras
from keras import ops

from tiebeam.blocks.readout_loss.options import NAME, Options, checked_factor, no_array, no_such_returns
from tiebeam.errors import InputError, RangeError


def readout_loss(
    hidden: Any,
    table: Any,
    targets: Any,
    *,
    factor: Any = 1.0,
    soft_cap: float | None = None,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weight: Any = None,
    reduction: str = "mean",
    chunk: int | str = "auto",
    ids: Any = None,
    returns: str = "loss",
) -> Any:
    """Return the cross entropy of a readout; its logits are never held beyond one block of tokens.

    On PyTorch this is `tiebeam.torch.readout_loss`, on JAX `tiebeam.jax.readout_loss`; on TensorFlow a loop with a
    gradient of its own, eagerly and in a `tf.function`.

    Args:
        hidden: (..., width), floating.
        table: (vocab, width), floating: a tensor or a variable.
        targets: (...), integers.
        factor, soft_cap, bias, ignore_index, label_smoothing, z_loss, weight, reduction, chunk: See
            `tiebeam.torch.readout_loss`.
        ids: (...), of the tokens read, for the statistics.
        returns: "loss", or "stats" for the loss and a record of `logsumexp`, `best`, `own_logit` and `counted`.

    Returns:
        A scalar, or of the targets' shape; float32, float64 where hidden or table is. Unit: nats.

    Raises:
        ShapeError, InputError, RangeError: As in PyTorch; what needs numbers, as a target outside the table, where they
            are known. In a graph such a target makes the loss NaN on JAX and TensorFlow.

    Example:
        >>> table = keras.random.normal((11, 8), seed=0)
        >>> loss = readout_loss(keras.random.normal((2, 3, 8), seed=1), table, ops.ones((2, 3), dtype="int32"))
        >>> tuple(loss.shape)
        ()
    """
    arrays = {"hidden": hidden, "table": table, "targets": targets, "bias": bias, "weight": weight, "ids": ids}
    hidden, table, targets, bias, weight, ids = (_tensor(a, name) for name, a in arrays.items())
    factor = _tensor(factor, "factor") if isinstance(factor, keras.Variable) else factor
    given = {
        "factor": factor,
        "soft_cap": soft_cap,
        "bias": bias,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
        "weight": weight,
        "reduction": reduction,
        "chunk": chunk,
        "ids": ids,
        "returns": returns,
    }
    backend = keras.backend.backend()
    if backend == "torch":
        from tiebeam.blocks.readout_loss.torch import call as of_torch

        return of_torch.readout_loss(hidden, table, targets, **given)
    if backend == "jax":
        from tiebeam.blocks.readout_loss import jax as of_jax

        return of_jax.readout_loss(hidden, table, targets, **given)
    if backend == "tensorflow":
        return _on_tensorflow(hidden, table, targets, given)
    raise RangeError(f"{NAME} on the Keras backend {backend}", got=backend, expected="torch, jax or tensorflow")


def _tensor(a: Any, name: str) -> Any:
    """A variable's own value, in its own dtype; a layer's policy would have it cast."""
    if isinstance(a, keras.Layer):
        raise no_array(name, a)
    if isinstance(a, keras.KerasTensor):
        raise InputError(
            f"{NAME} computes, and was given what a functional model is drawn with",
            got=str(a),
            expected="a tensor",
            hint="call it where there are numbers: in the `call` of a layer or in a `train_step`",
        )
    return a if a is None else ops.convert_to_tensor(a.value if isinstance(a, keras.Variable) else a)


def _on_tensorflow(hidden: Any, table: Any, targets: Any, given: dict[str, Any]) -> Any:
    from tiebeam.blocks.readout_loss import tensorflow as of_tensorflow
    from tiebeam.blocks.readout_loss.statistics import ReadoutStats

    factor, bias, weight, ids, returns = (given.pop(k) for k in ("factor", "bias", "weight", "ids", "returns"))
    options = Options.of(**given)
    if returns not in ("loss", "stats"):
        raise no_such_returns(returns)
    factor = factor if hasattr(factor, "dtype") and hasattr(factor, "shape") else checked_factor(factor)
    read, right, own_ids = of_tensorflow.flat(hidden, table, targets, ids)
    found = of_tensorflow.loss_of(read, table, right, factor, bias, weight, own_ids, options)
    like = ops.shape(targets)
    loss = ops.reshape(found.loss, like) if options.reduction == "none" else found.loss
    if returns == "loss":
        return loss
    lse, best = (ops.stop_gradient(ops.reshape(a, like)) for a in (found.lse, found.best))
    own = None if ids is None else ops.stop_gradient(ops.reshape(found.own, like))
    return loss, ReadoutStats(lse, best, own, ops.not_equal(targets, options.ignore_index))
