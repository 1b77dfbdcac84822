"""What the kinds of JAX models have in common: named arrays, a pure call, and the way back to a model."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol, runtime_checkable
from weakref import ref

import jax.numpy as jnp
import numpy as np
from jax import tree_util

from tiebeam.backends.jax.kinds.scopes import scopes
from tiebeam.backends.jax.kinds.tree import Slot, Tree, is_array
from tiebeam.core.closures import closed_over
from tiebeam.errors import InputError


class Held(Protocol):
    """A model with its arrays taken out.

    Attributes:
        model: What the caller passed.
        slots: The arrays, in the order in which `call` and `rebuilt` take them.
    """

    model: Any
    slots: list[Slot]

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to, for its signature."""
        ...

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the model with these arrays in place of its own."""
        ...

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """What the caller passed, with these arrays."""
        ...

    def where(self, stack: str) -> str:
        """The module path that a name stack stands for."""
        ...

    def tie(self, owner: str, other: str) -> str:
        """Python that makes the array at `other` the one at `owner`, or "" where it takes a change of the model."""
        ...


class Naming(Protocol):
    """What tells modules by name stacks; it holds no arrays."""

    def where(self, stack: str) -> str:
        """The module path that a name stack stands for."""
        ...


@runtime_checkable
class Known(Protocol):
    """A model of which a program need not be traced again.

    Attributes:
        naming: Tells modules by the name stacks of the program that was traced.
    """

    @property
    def naming(self) -> Naming:
        """Tells modules by the name stacks of the program that is traced."""
        ...

    @property
    def kind(self) -> Hashable:
        """What the program depends on: the model and its arrays' kinds; it may turn out to have no hash."""
        ...


@runtime_checkable
class Marked(Protocol):
    """A model that marks in its program which module runs."""

    def learn(self, mark: str, names: Sequence[str]) -> bool:
        """Take in that a named value of the program is the leaf of these names; False: the name is no mark."""
        ...


def no_variables(name: str, params: Any, expected: str) -> InputError:
    """The error of what stands in the place of params and is none: inputs, mostly."""
    of_ids = all(map(_holds_ids, tree_util.tree_leaves(params)))
    return InputError(
        f"the params of {name} are no tree of its variables",
        got=f"an array of shape {tuple(params.shape)}, {params.dtype}"
        if is_array(params)
        else f"a {type(params).__name__}",
        expected=expected,
        hint="inputs come first: (model, inputs, params=params)"
        if of_ids
        else "pass params alone: an optimizer's state, or a tuple that holds params, is another tree",
    )


def _holds_ids(leaf: Any) -> bool:
    return is_array(leaf) and bool(jnp.issubdtype(leaf.dtype, np.signedinteger))


class HeldFunction:
    """A function `fn(params, *inputs)`.

    Args:
        model: The function.
        params: Any pytree.
    """

    def __init__(self, model: Callable[..., Any], params: Any) -> None:
        self.model, self.params = model, params
        self._tree = Tree(params)
        if not self._tree.arrays:
            raise InputError(
                f"the params of {self.name} hold no arrays",
                got=f"a {type(params).__name__}",
                expected="a pytree of arrays, or of shapes by jax.eval_shape",
                hint="pass params=, the tree that the function takes as its first argument",
            )
        if _holds_ids(params):
            raise no_variables(self.name, params, "the tree that the function takes as its first argument")
        self.slots = [Slot((n,), a) for n, a in zip(self._tree.names, self._tree.arrays, strict=True)]

    @property
    def name(self) -> str:
        return str(getattr(self.model, "__name__", type(self.model).__name__))

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to: the function without its first argument."""
        return _WithoutParams(self.model)

    def call(self, arrays: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.model(self._tree.rebuilt(arrays), *args, **kwargs)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        return self._tree.rebuilt(arrays)

    @property
    def naming(self) -> Naming:
        return _Scopes()

    @property
    def kind(self) -> Hashable:
        # A function may close over arrays: a program that is kept need not keep it alive.
        model = ref(self.model) if isinstance(self.model, FunctionType) else self.model
        return model, closed_over(self.model), self._tree.kind

    def where(self, stack: str) -> str:
        return self.naming.where(stack)

    def tie(self, owner: str, other: str) -> str:
        return ""


class _Scopes:
    """A function's own named scopes."""

    def where(self, stack: str) -> str:
        return ".".join(scopes(stack))


class _WithoutParams:
    """A function whose signature lacks the first parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import inspect

        signature = inspect.signature(function)
        self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(self, *args: Any) -> None:
        raise NotImplementedError("this stands for a signature alone")
