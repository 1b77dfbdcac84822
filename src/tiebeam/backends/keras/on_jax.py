"""Keras on JAX: the jaxpr of the model's call, its variables as arguments; what is written is assigned."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import keras

from tiebeam.backends.jax.kinds.scopes import scopes
from tiebeam.backends.jax.kinds.tree import Slot
from tiebeam.backends.jax.model import JaxModel
from tiebeam.backends.jax.trace import Trace
from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.layers import Places
from tiebeam.backends.keras.optimizers.silent import states_of
from tiebeam.backends.keras.untouched import attributes_of, untouched
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.ir import Leaf


@dataclass(frozen=True)
class PlacesOnJax:
    """Layers by the name stacks of a jaxpr."""

    places: Places

    def where(self, stack: str) -> str:
        """The path of the layer that a name stack stands for."""
        return self.places.where(scopes(stack))


class HeldKeras:
    """A Keras model with the arrays of its variables taken out; see `backends.jax.kinds.held.Held`."""

    def __init__(self, view: KerasModel) -> None:
        self.model, self._layers = view.model, view.layers
        self._variables = [v.variable for v in view.variables.all]
        self.slots = [Slot(v.names, v.variable._value, v.parameter, v.trainable) for v in view.variables.all]

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to."""
        return self.model.call  # type: ignore[no-any-return]

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the model: what `stateless_call` leaves out (its own mask, its dtype policy) counts too."""
        with untouched(self.model, list(zip(self._variables, arrays, strict=True))):
            return self.model(*args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """Assign the arrays: a Keras model is written in place."""
        for variable, array in zip(self._variables, arrays, strict=True):
            if variable._value is not array:
                variable.assign(array)
        return self.model

    def where(self, stack: str) -> str:
        return self.naming.where(stack)

    @property
    def naming(self) -> PlacesOnJax:
        return PlacesOnJax(self._layers.places)

    @property
    def kind(self) -> Hashable:
        """The model, which a program need not keep alive, and what is trained and shared in it."""
        return ref(self.model), tuple((slot.names, slot.trainable) for slot in self.slots), attributes_of(self.model)

    def tie(self, owner: str, other: str) -> str:
        return ""  # `KerasFixes` knows


class KerasOnJax(KerasModel, JaxModel):
    """One Keras model whose arrays are JAX's."""

    def __init__(self, model: keras.Layer) -> None:
        KerasModel.__init__(self, model)
        JaxModel.__init__(self, HeldKeras(self))

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Trace:
        """One call of the model."""
        traced: Trace = self.noted(super().trace(args, kwargs, logits=logits, seed=seed, measure=measure))
        return traced

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Trace, Wanted, Passed]:
        """One forward and one backward pass; see `protocol.Differentiable`."""
        asked_of = replace(request, optimizer=self._states(request.optimizer))
        traced, asked, passed = super().differentiate(args, kwargs, asked_of)
        return self.noted(traced), asked, passed

    def _states(self, optimizer: Any) -> Any:
        """A Keras optimizer's moments by the path of their variable, as an optax state has them."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            return optimizer
        held = {v.name: states_of(optimizer, v.variable._value) for v in self.variables.parameters}
        most = max(map(len, held.values()), default=0)
        return [{name: found[i].value for name, found in held.items() if i < len(found)} for i in range(most)]

    def write(
        self,
        traced: Any,
        leaf: Leaf,
        *,
        vocab_axis: int,
        seed: int,
        ordinal: int,
        std: float,
        zero_rows: tuple[int, ...],
    ) -> None:
        super().write(traced, leaf, vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, zero_rows=zero_rows)
        self.held.rebuilt(self.arrays)

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set trainable parameters to zero: the names that were, and what puts them back."""
        done = super().zero([v.name for v in self.variables.to_zero(names)])
        self.held.rebuilt(self.arrays)
        return done

    def _put_back(self, places: Sequence[int]) -> Callable[[], None]:
        back = super()._put_back(places)

        def put_back() -> None:
            back()
            self.held.rebuilt(self.arrays)

        return put_back
