"""One small model that every framework builds alike: a description, and weights as NumPy arrays.

    rows   = table[ids], through `lookup`, plus positions
    stream = rows + tanh(rows @ mid)
    hidden = norm(stream)
    logits = (hidden through `before`) @ readout.T + bias, through `after`, then the soft cap

The readout is the table itself where the model is tied. A classifier has no table: `tanh(features @ mid) @ out`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Form = Literal["multiply", "divide", "array", "negate", "double"]

_FACTOR: dict[str, Callable[[float], float]] = {
    "multiply": lambda by: by,
    "divide": lambda by: 1.0 / by,
    "array": lambda by: float(np.float32(by)),
    "negate": lambda by: -1.0,
    "double": lambda by: 2.0,
}
_APPLY: dict[str, Callable[[Any, float, Callable[[float], Any]], Any]] = {
    "multiply": lambda x, by, array: x * by,
    "divide": lambda x, by, array: x / by,
    "array": lambda x, by, array: x * array(by),
    "negate": lambda x, by, array: -x,
    "double": lambda x, by, array: x + x,
}
EPSILON = 1e-6
CLASSES = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One multiplication by a constant, as a program may write it.

    Attributes:
        by: The number in the program; "negate" and "double" (`x + x`) need none.
        form: "multiply" `x * by`, "divide" `x / by`, "array" `x * a` with a float32 array `a` of no axes.

    Example:
        >>> Step(4.0, "divide").factor, Step(form="negate").factor
        (0.25, -1.0)
    """

    by: float = 1.0
    form: Form = "multiply"

    @property
    def factor(self) -> float:
        """What the signal is multiplied by."""
        return _FACTOR[self.form](self.by)


def product(steps: Iterable[Step]) -> float:
    """The factor of several steps.

    Example:
        >>> product((Step(3.0), Step(2.0, "divide"), Step(form="double")))
        3.0
    """
    return math.prod(step.factor for step in steps)


def stepped(x: Any, steps: Iterable[Step], array: Callable[[float], Any] = np.float32) -> Any:
    """Lead `x`, an array of any framework, through the steps.

    Args:
        x: The signal.
        steps: In order.
        array: Makes the framework's float32 array of no axes.

    Example:
        >>> stepped(np.ones(2), (Step(3.0), Step(form="negate"))).tolist()
        [-3.0, -3.0]
    """
    for step in steps:
        x = _APPLY[step.form](x, step.by, array)
    return x


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model, as data.

    Attributes:
        kind: "classifier" has no table.
        vocab, width: Sizes of the table.
        tied: Whether the readout is the table itself.
        lookup, before, after: What multiplies the rows, the hidden state and the logits.
        soft_cap: c of `c * tanh(z / c)`, or None.
        bias: Whether a bias over the vocabulary is added to the logits.
        norm: Normalisation before the readout.
        norm_rows: Whether the rows are normalised before anything else reads them.
        gain: Every entry of that normalisation's gain: the hidden state's size.
        positions: Longest sequence of learned positions that are added to the rows; 0: none.
        padding: Row that is zero, or None.

    Example:
        >>> Blueprint(lookup=(Step(4.0),), after=(Step(2.0, "divide"),)).readout_factor
        0.5
    """

    kind: Literal["language model", "classifier"] = "language model"
    vocab: int = 300
    width: int = 48
    tied: bool = True
    lookup: tuple[Step, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    soft_cap: float | None = None
    bias: bool = False
    norm: Literal["layer", "rms", "none"] = "layer"
    norm_rows: bool = False
    gain: float = 1.0
    positions: int = 0
    padding: int | None = None

    @property
    def lookup_factor(self) -> float:
        """Product from the rows to the end of the walk."""
        return product(self.lookup)

    @property
    def readout_factor(self) -> float:
        """Product from the normalisation to the logits; the soft cap's slope at 0 is 1."""
        return product((*self.before, *self.after))

    @property
    def target_std(self) -> float:
        """Std of the readout's table at which logits have unit variance, behind a normalisation."""
        return 1.0 / (abs(self.readout_factor) * abs(self.gain) * math.sqrt(self.width))

    def weights(self, seed: int = 0, std: float | None = None) -> dict[str, Floats]:
        """Normal draws.

        Args:
            seed: Of NumPy's default generator.
            std: Of the table that is read out; None is `target_std`. An untied lookup has `1 / |lookup_factor|`.

        Returns:
            float32 arrays by name: `table`, `head`, `positions`, `mid`, `gain`, `bias`, where the model has them.

        Example:
            >>> {name: array.shape for name, array in Blueprint(bias=True).weights().items()}
            {'mid': (48, 48), 'table': (300, 48), 'gain': (48,), 'bias': (300,)}
        """
        rng = np.random.default_rng(seed)

        def normal(std: float, *shape: int) -> Floats:
            return (std * rng.standard_normal(shape)).astype(np.float32)

        arrays = {"mid": normal(self.width**-0.5, self.width, self.width)}
        if self.kind == "classifier":
            return arrays | {"out": normal(self.width**-0.5, self.width, CLASSES)}
        read = self.target_std if std is None else std
        arrays["table"] = normal(read if self.tied else 1 / abs(self.lookup_factor), self.vocab, self.width)
        if self.padding is not None:
            arrays["table"][self.padding] = 0
        if not self.tied:
            arrays["head"] = normal(read, self.vocab, self.width)
        if self.positions:
            arrays["positions"] = normal(0.02, self.positions, self.width)
        if self.norm != "none":
            arrays["gain"] = np.full(self.width, self.gain, np.float32)
        if self.bias:
            arrays["bias"] = normal(0.5, self.vocab)
        return arrays

    def inputs(self, seed: int = 1, batch: int = 4, tokens: int = 24) -> Any:
        """Token ids `(batch, tokens)`, int32; features `(batch, width)`, float32, for a classifier."""
        rng = np.random.default_rng(seed)
        if self.kind == "classifier":
            return rng.standard_normal((batch, self.width)).astype(np.float32)
        return rng.integers(0, self.vocab, (batch, tokens)).astype(np.int32)

    def but(self, **changes: Any) -> "Blueprint":
        """The same with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Built:
    """A blueprint in a framework.

    Attributes:
        model: What `tiebeam.inspect` takes.
        params: What it takes beside the model; None where the model holds its weights.
        names: Paths that a report gives a weight, owner first, by the blueprint's name of it.
        arrays: From the holder of the weights (`params`, or the model) to float32 arrays by the blueprint's names.
        logits: From the holder and inputs to what the model returns, as float32.
    """

    model: Any
    params: Any
    names: Mapping[str, tuple[str, ...]]
    arrays: Callable[[Any], dict[str, Floats]]
    logits: Callable[[Any, Any], Floats]

    @property
    def holder(self) -> Any:
        """What holds the weights."""
        return self.model if self.params is None else self.params


class Builder(Protocol):
    """How a framework builds blueprints."""

    framework: str

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The model with these weights, in float32 or bfloat16."""
        ...

    def abstract(self, blueprint: Blueprint) -> Built:
        """The model as shapes without values."""
        ...

    def random_state(self) -> bytes:
        """The framework's own generators, all that a pass could move; empty where there are none."""
        ...
