"""One weight read in both roles, as a Keras layer on any of its backends."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tiebeam.blocks.readout_loss.keras import readout_loss
from tiebeam.blocks.settings import OWNER, Settings, wrong_ids
from tiebeam.core.initialising.moments import target_std_readout
from tiebeam.errors import InputError, RangeError

PACKAGE = "tiebeam"

Shape = tuple[int | None, ...]


@keras.saving.register_keras_serializable(package=PACKAGE)
class UnitLogitNormal(keras.initializers.Initializer):  # type: ignore[misc]
    """Draws a table that gives unit-variance logits of a hidden state of root mean square 1.

    The std is `1 / (|readout_factor| * sqrt(width))`, with the width of the shape that is asked for.

    Args:
        readout_factor: Multiplies the logits, not 0.
        padding_idx: A row that starts at zero, or None.
        seed: None draws anew each time, from Keras's own seed.

    Raises:
        RangeError: The factor is 0 or no finite number.

    Source: `tiebeam.core.initialising.moments.target_std_readout`.

    Example:
        >>> table = UnitLogitNormal(seed=0)((1000, 64))
        >>> round(float(keras.ops.std(table)), 3)
        0.125
    """

    def __init__(self, readout_factor: float = 1.0, padding_idx: int | None = None, seed: int | None = None) -> None:
        target_std_readout(readout_factor, 1.0, 1)  # refuse now what cannot be drawn
        self.readout_factor = float(readout_factor)
        self.padding_idx = None if padding_idx is None else int(padding_idx)
        self.seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return a tensor of that shape, (vocab, width)."""
        std = target_std_readout(self.readout_factor, 1.0, shape[-1])
        table = keras.initializers.RandomNormal(stddev=std, seed=self.seed)(shape, dtype=dtype)
        if self.padding_idx is None:
            return table
        return ops.where(ops.expand_dims(ops.arange(shape[0]) == self.padding_idx, -1), ops.zeros_like(table), table)

    def get_config(self) -> dict[str, Any]:
        """What makes it again."""
        return {"readout_factor": self.readout_factor, "padding_idx": self.padding_idx, "seed": self.seed}


@keras.saving.register_keras_serializable(package=PACKAGE)
class TiedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """A table that is looked up and read out: `layer(ids)` and `layer(hidden, reverse=True)`.

    Args:
        vocab: Rows of the table.
        width: Of the stream.
        table_width: Columns of the table; None is `width`. Where it differs, `project_in` and `project_out`
            are products of their own (as in ALBERT and OPT).
        lookup_factor: Multiplies the looked-up rows; None is `sqrt(table_width)`.
        readout_factor: Multiplies the product with the table, before bias and soft cap.
        soft_cap: c of `c * tanh(z / c)` on the logits, or None.
        padding_idx: Its lookup is zero whatever its row holds, and sends no gradient; the row starts at zero.
        use_bias: Whether logits have one.
        mask_zero: Whether a lookup carries the mask `ids != 0`, as in `keras.layers.Embedding`.
        embeddings_initializer: Draws the table; None is `UnitLogitNormal(readout_factor, padding_idx)`.
        embeddings_regularizer, embeddings_constraint: As in `keras.layers.Embedding`.
        **kwargs: `name`, `dtype` (a policy), `trainable`.

    Attributes:
        embeddings: The table, (vocab, table_width), once the layer is built.
        bias, project_in, project_out: Variables, or None.
        settings: Sizes and factors with their defaults filled in, and the `std` that follows.

    Raises:
        RangeError: A number lies outside what makes sense, or `mask_zero` and `padding_idx` disagree.

    Source: Press & Wolf 2017, arXiv 1608.05859; Vaswani et al. 2017, section 3.4; Lan et al. 2020, arXiv
        1909.11942, section 3.1.

    Example:
        >>> layer = TiedEmbedding(vocab=100, width=64)
        >>> ids = keras.Input((None,), dtype="int32")
        >>> model = keras.Model(ids, layer(keras.layers.LayerNormalization()(layer(ids)), reverse=True))
        >>> model.output_shape
        (None, None, 100)
    """

    def __init__(
        self,
        vocab: int,
        width: int,
        *,
        table_width: int | None = None,
        lookup_factor: float | None = None,
        readout_factor: float = 1.0,
        soft_cap: float | None = None,
        padding_idx: int | None = None,
        use_bias: bool = False,
        mask_zero: bool = False,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given: Mapping[str, Any] = {
            "table_width": table_width,
            "lookup_factor": lookup_factor,
            "readout_factor": readout_factor,
            "soft_cap": soft_cap,
            "padding_idx": padding_idx,
        }
        self.settings = Settings.of(vocab, width, **given)
        # Checked numbers are Python's own, which a config can hold.
        self._given = {name: None if n is None else getattr(self.settings, name) for name, n in given.items()}
        if mask_zero and padding_idx not in (None, 0):
            raise RangeError(
                f"mask_zero of {OWNER} masks id 0, and padding_idx is another",
                got=f"mask_zero={mask_zero}, padding_idx={padding_idx}",
                expected="padding_idx 0 or None",
                hint="leave mask_zero out and pass a mask of your own",
            )
        self.use_bias, self.mask_zero = use_bias, mask_zero
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.bias: Any = None
        self.project_in: Any = None
        self.project_out: Any = None
        self.supports_masking = True
        self.autocast = False  # of a lookup, rows are cast, not the table

    def build(self, input_shape: Any = None) -> None:
        """Make the weights; their shapes do not depend on the input."""
        s = self.settings
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(s.vocab, s.table_width),
            initializer=self.embeddings_initializer or UnitLogitNormal(s.readout_factor, s.padding_idx),
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(s.vocab,), initializer="zeros")
        if s.factorised:
            fan_in = keras.initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal")
            for name, shape in (("project_in", (s.table_width, s.width)), ("project_out", (s.width, s.table_width))):
                setattr(self, name, self.add_weight(name=name, shape=shape, initializer=fan_in.clone()))

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        """Look `inputs` up, or read them out with `reverse=True`.

        Args:
            inputs: Token ids, integers of any shape; to be read out, a hidden state, (..., width).
            reverse: Which of the two.

        Returns:
            (..., width), or logits, (..., vocab), unit nats; of the policy's compute dtype.

        Raises:
            InputError: The ids are no integers. `keras.layers.Embedding` casts them, and so would look up
                a hidden state whose `reverse=True` was forgotten.
            ShapeError: The hidden state does not end in `width`.
        """
        return self._read(inputs) if reverse else self._look(inputs)

    def loss(self, hidden: Any, targets: Any, **options: Any) -> Any:
        """Return the mean cross entropy of `layer(hidden, reverse=True)` against `targets`, without the logits.

        For a training step of one's own; the layer must have been called or built. `fit` takes the logits.

        Args:
            hidden: (..., width).
            targets: (...), ids of the tokens that are to be predicted, or -100.
            options: Of `tiebeam.keras.readout_loss`, but for what the layer knows itself.

        Raises:
            InputError: The layer is not built.
            ShapeError: The hidden state does not end in `width`, or the targets do not fit it.
        """
        s = self.settings
        s.check_hidden(tuple(hidden.shape))
        if not self.built:
            raise InputError(
                f"{OWNER} has no table yet",
                got="a layer that is not built",
                expected="one that was called, or built",
                hint="look ids up first: layer(ids); or layer.build()",
            )
        hidden = ops.cast(hidden, self.compute_dtype)
        if self.project_out is not None:
            hidden = self._product("...i,ij->...j", hidden, self.project_out)
        table = ops.cast(self.embeddings, self.compute_dtype)
        known: dict[str, Any] = {"factor": s.readout_factor, "soft_cap": s.soft_cap, "bias": self.bias}
        return readout_loss(hidden, table, targets, **known, **options)

    def _look(self, ids: Any) -> Any:
        _check_ids(ids)
        s = self.settings
        rows = ops.cast(ops.take(self.embeddings, ids, axis=0), self.compute_dtype)
        if s.padding_idx is not None:
            rows = ops.where(ops.expand_dims(ops.equal(ids, s.padding_idx), -1), ops.zeros_like(rows), rows)
        rows = rows if s.lookup_factor == 1.0 else rows * s.lookup_factor
        return rows if self.project_in is None else self._product("...i,ij->...j", rows, self.project_in)

    def _read(self, hidden: Any) -> Any:
        s = self.settings
        s.check_hidden(tuple(hidden.shape))
        hidden = ops.cast(hidden, self.compute_dtype)
        if self.project_out is not None:
            hidden = self._product("...i,ij->...j", hidden, self.project_out)
        if s.readout_factor != 1.0:
            hidden = hidden * s.readout_factor  # smaller than the logits
        # Contracts the last axes of both: `matmul` would want a transposed table, which some backends copy.
        logits = self._product("...d,vd->...v", hidden, self.embeddings)
        if self.bias is not None:
            logits = logits + ops.cast(self.bias, self.compute_dtype)
        return logits if s.soft_cap is None else s.soft_cap * ops.tanh(logits / s.soft_cap)

    def _product(self, equation: str, x: Any, variable: Any) -> Any:
        matrix = ops.cast(variable, self.compute_dtype)
        odd = any(size % 2 for size in matrix.shape)
        wrong = self.compute_dtype == "float16" or (self.compute_dtype == "bfloat16" and odd)
        if wrong and keras.backend.backend() == "tensorflow":
            # TensorFlow 2.21's einsum is wrong on processors with AMX: in float16 with three axes, in bfloat16 where
            # it sums over an odd number of products, of the gradients too.
            return ops.matmul(x, matrix if equation == "...i,ij->...j" else ops.transpose(matrix))
        # `ops.matmul` returns float32 for float64 on one backend.
        return ops.einsum(equation, x, matrix)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return `ids != 0` of a lookup with `mask_zero`; a readout hands on the mask that it was given."""
        if not _integers(inputs):
            return previous_mask
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], reverse: bool = False
    ) -> tuple[int | None, ...]:
        """Shape of what `call` returns."""
        if not reverse:
            return (*input_shape, self.settings.width)
        self.settings.check_hidden(tuple(input_shape))
        return (*input_shape[:-1], self.settings.vocab)

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> Any:
        """Shape and dtype of what `call` returns, without computing it."""
        if not reverse:
            _check_ids(inputs)
        return keras.KerasTensor(self.compute_output_shape(tuple(inputs.shape), reverse), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """What makes it again, as it was given: a default stays one."""
        return {
            **super().get_config(),
            "vocab": self.settings.vocab,
            "width": self.settings.width,
            **self._given,
            "use_bias": self.use_bias,
            "mask_zero": self.mask_zero,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
        }


def _integers(x: Any) -> bool:
    return "int" in keras.backend.standardize_dtype(x.dtype)


def _check_ids(ids: Any) -> None:
    if not _integers(ids):
        raise wrong_ids(keras.backend.standardize_dtype(ids.dtype))
