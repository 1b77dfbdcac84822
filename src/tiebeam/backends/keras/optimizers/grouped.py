"""A Keras optimizer of several: one rate for all, of which each takes its share, and variables shared out among them.

Keras' own `MultiOptimizer` finds a variable's optimizer by its path and clips each group by a norm of its own; Keras'
callbacks set all of its optimizers to one rate, for they know it by its attribute `optimizers`; and Keras has it only
of late. Here variables are told by identity and, after loading, by their place among the model's trainable variables,
which is how Keras itself finds an optimizer's state again.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tiebeam.errors import InputError

PACKAGE = "tiebeam"

OF_ALL = (
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
"""Settings of an optimizer that concern all variables together: they are the whole's, not the groups'."""


@keras.saving.register_keras_serializable(package=PACKAGE)
class Share(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """The learning rate of a group: the rate of the whole, times a factor.

    Args:
        factor: Multiplies the rate.
        schedule: A schedule to take the place of the whole's rate, or None.

    Raises:
        InputError: When called: it belongs to no optimizer yet.
    """

    def __init__(self, factor: float = 1.0, schedule: Any = None) -> None:
        super().__init__()
        self.factor, self.schedule = float(factor), schedule
        self.whole: Any = None

    def __call__(self, step: Any) -> Any:
        """Return the present rate; the step is the whole's own."""
        if self.whole is None:
            raise InputError("a share of a learning rate has no value by itself", got="no optimizer around it")
        rate = self.whole.learning_rate if self.schedule is None else self.whole.follow(self.schedule)
        return rate if self.factor == 1.0 else keras.ops.multiply(rate, self.factor)

    def get_config(self) -> dict[str, Any]:
        """What makes it again."""
        schedule = None if self.schedule is None else keras.saving.serialize_keras_object(self.schedule)
        return {"factor": self.factor, "schedule": schedule}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Share":
        """Make it from what `get_config` gave."""
        schedule = config["schedule"]
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule, custom_objects=custom_objects)
        return cls(config["factor"], schedule)


class Members:
    """Which variable is in which group. An object, for Keras takes variables in a list for an optimizer's own.

    Args:
        places: By group, places among the trainable variables.
        shapes: Of those variables, in their order.
        known: The variables themselves; None after loading, when places are all that is known.
    """

    def __init__(
        self, places: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], known: Sequence[Any] | None
    ) -> None:
        self.places = [list(group) for group in places]
        self.shapes = [list(shape) for shape in shapes]
        self.known = None if known is None else list(known)
        self.group_of: dict[Any, int] = {}

    def settle(self, variables: Sequence[Any]) -> list[list[Any]]:
        """Share out the variables that are trained; places are then theirs.

        Raises:
            InputError: One is in no group, or they are not those that the groups were made for.
        """
        group_at = {place: g for g, group in enumerate(self.places) for place in group}
        if self.known is None:
            shapes = [list(v.shape) for v in variables]
            if shapes != self.shapes:
                raise InputError(
                    "the optimizer was saved with other variables than it is built with",
                    got=f"{len(shapes)} trainable variables, {_first_apart(shapes, self.shapes)}",
                    expected=f"{len(self.shapes)}, as they were when it was saved",
                    hint="freeze and unfreeze as before saving; or make it anew with tiebeam.keras.optimizer",
                )
            groups = [group_at[i] for i in range(len(variables))]
        else:
            place_of = {id(v): i for i, v in enumerate(self.known)}
            strange = [v.path for v in variables if id(v) not in place_of]
            if strange:
                raise InputError(
                    "the optimizer has no group for what it is to train",
                    got=", ".join(strange),
                    expected="variables that were trainable when it was made",
                    hint="make it with tiebeam.keras.optimizer after unfreezing, tying and loading",
                )
            groups = [group_at[place_of[id(v)]] for v in variables]
        found: list[list[Any]] = [[] for _ in self.places]
        self.places = [[] for _ in self.places]
        for i, (variable, g) in enumerate(zip(variables, groups, strict=True)):
            found[g].append(variable)
            self.places[g].append(i)
        self.shapes, self.known = [list(v.shape) for v in variables], list(variables)
        return found


def _first_apart(got: list[list[int]], expected: list[list[int]]) -> str:
    apart = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    return "the same as far as they go" if apart is None else f"number {apart} of shape {tuple(got[apart])}"


@keras.saving.register_keras_serializable(package=PACKAGE)
class GroupedOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Several optimizers that train a model together; `tiebeam.keras.optimizer` makes it.

    Its `learning_rate` is that of the body; setting it, as `ReduceLROnPlateau` and `LearningRateScheduler` do, keeps
    every group's share. Clipping by the global norm, accumulation, averaging and loss scaling are done once, for all
    variables together.

    Args:
        groups: An optimizer for each; their rates are `Share`.
        places: By group, places of its variables among the model's trainable variables.
        shapes: Of those variables.
        known: The variables themselves.
        learning_rate: A number or a schedule.
        **settings: `OF_ALL` and `name`.

    Attributes:
        groups: An optimizer for each, in the order of the plan.
        kinds: What each group is, for messages: "matrices", "vectors", "table token_embedding/embeddings".
    """

    def __init__(
        self,
        groups: Sequence[Any],
        places: Sequence[Sequence[int]],
        shapes: Sequence[Sequence[int]],
        kinds: Sequence[str],
        *,
        known: Sequence[Any] | None = None,
        learning_rate: Any = 0.001,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.groups = list(groups)
        self.kinds = tuple(kinds)
        self._members = Members(places, shapes, known)
        for one in self.groups:
            one._learning_rate.whole = self

    def follow(self, schedule: Any) -> Any:
        """The value of a schedule at the present step."""
        return schedule(self._iterations)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state of every group."""
        if self.built:
            return
        parts = self._members.settle(variables)
        for one, part in zip(self.groups, parts, strict=True):
            one.build(part)
        self._members.group_of = {self._var_key(v): g for g, part in enumerate(parts) for v in part}
        super().build(list(variables))

    @property
    def variables(self) -> list[Any]:
        """Its own, then those of each group."""
        return [*self._variables, *(v for one in self.groups for v in one.variables)]

    def variables_of(self, group: int) -> list[Any]:
        """The model's variables that a group trains, once they are known."""
        known = self._members.known
        return [] if known is None else [known[place] for place in self._members.places[group]]

    def _parts(self, variables: Sequence[Any]) -> list[list[int]]:
        """By group, which of these are its."""
        found: list[list[int]] = [[] for _ in self.groups]
        for i, variable in enumerate(variables):
            found[self._members.group_of[self._var_key(variable)]].append(i)
        return found

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Do not decay these, in whichever group they are."""
        for one in self.groups:
            one.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for one, part in zip(self.groups, self._parts(variables), strict=True):
            decayed = [variables[i] for i in part if one._use_weight_decay(variables[i])]
            if decayed and one.weight_decay:  # Keras on PyTorch fails where every one of a list is excluded
                one._apply_weight_decay(decayed)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        for one, part in zip(self.groups, self._parts(trainable_variables), strict=True):
            if part:
                clipped = one._clip_gradients([grads[i] for i in part])  # its own bound, in the unit of its gradients
                one._backend_update_step(clipped, [trainable_variables[i] for i in part], one.learning_rate)
            one.iterations.assign_add(1)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set everything that `variables` lists."""
        if not self.built or len(weights) != len(self.variables):
            raise InputError(
                "these are not the optimizer's weights",
                got=f"{len(weights)} arrays",
                expected=f"{len(self.variables)}" if self.built else "an optimizer that is built",
            )
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)

    def save_own_variables(self, store: Any) -> None:
        """Only its own: Keras saves each group's optimizer by itself."""
        for i, variable in enumerate(self._variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """As `save_own_variables` wrote them."""
        if len(store.keys()) != len(self._variables):
            raise InputError(
                "the saved state is of another optimizer",
                got=f"{len(store.keys())} variables",
                expected=f"{len(self._variables)}",
            )
        for i, variable in enumerate(self._variables):
            variable.assign(store[str(i)])

    def get_config(self) -> dict[str, Any]:
        """What makes it again; for which variables, by their places."""
        config = super().get_config()
        own = {key: config[key] for key in ("name", "learning_rate", *OF_ALL)}
        return {
            **own,
            "groups": [keras.saving.serialize_keras_object(one) for one in self.groups],
            "places": self._members.places,
            "shapes": self._members.shapes,
            "kinds": list(self.kinds),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "GroupedOptimizer":
        """Make it from what `get_config` gave."""

        def made(part: Any) -> Any:
            is_config = isinstance(part, dict)
            return keras.saving.deserialize_keras_object(part, custom_objects=custom_objects) if is_config else part

        groups = [made(part) for part in config["groups"]]
        return cls(**{**config, "groups": groups, "learning_rate": made(config["learning_rate"])})
