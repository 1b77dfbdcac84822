"""A Keras optimizer from the plan of `core.groups`: one of the caller's kind for each group of variables."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.layers import Layers
from tiebeam.backends.keras.model import of_keras
from tiebeam.backends.keras.optimizers.grouped import OF_ALL, GroupedOptimizer, Share
from tiebeam.backends.keras.variables import Named, Variables
from tiebeam.core.facts import Table
from tiebeam.core.report import Report
from tiebeam.core.training.groups import (
    Group,
    Parameter,
    check_beside,
    check_factory,
    check_rates,
    check_report,
    plan_groups,
    split_matrices,
)
from tiebeam.core.training.optimizers import Quantity, Rule, family_of_class, rule
from tiebeam.errors import InputError, RangeError

Rate = Any  # a number, or a schedule of Keras
Factory = Callable[..., Any]

UNITS: Mapping[str, Quantity] = {
    "epsilon": "gradient",
    "epsilon_1": "square",
    "epsilon_2": "parameter",
    "initial_accumulator_value": "square",
    "clipnorm": "gradient",
    "clipvalue": "gradient",
}
"""Settings of Keras' optimizers that have a unit: what each stands beside."""

UNDER_THE_ROOT = ("adagrad", "rmsprop")
"""Where Keras adds epsilon to the squared gradient."""


def optimizer(
    factory: Factory,
    model: Any,
    report: Report,
    *,
    lr: Rate,
    weight_decay: float | None = None,
    optimizer: str | None = None,
    base_width: int | None = None,
    base_readout_factor: float = 1.0,
    ratios: Mapping[str, float] | None = None,
    beside: Factory | None = None,
    beside_lr: Rate | None = None,
    adam: Collection[str] = (),
    **settings: Any,
) -> GroupedOptimizer:
    """Make a Keras optimizer that trains a model's tables at their own rate.

    It holds one optimizer of the factory's kind for each group of variables: matrices, vectors (norms, biases), which
    are not decayed, and each table by itself, told by the variable itself and never by its name. It goes into
    `model.compile`, is saved with the model and loads in safe mode wherever `tiebeam.keras` is imported.

    Keras subtracts weight decay, times the rate, beside the step in every one of its optimizers, so a table's decay
    goes as the inverse of its rate. `clipnorm` and `clipvalue` follow the table's gradient; `global_clipnorm` cannot.

    Args:
        factory: Called as `factory(learning_rate=..., **settings)`: an optimizer class of Keras, a `functools.partial`
            of one, or a function of yours that returns one.
        model: A built Keras model.
        report: Of `tiebeam.inspect` on this model.
        lr: Rate of the body: a number, or a `keras.optimizers.schedules.LearningRateSchedule`.
        weight_decay: Of the body's matrices; None: what the factory takes by itself.
        optimizer: Family, where the optimizer's class does not say it; see `tiebeam.torch.param_groups`.
        base_width: As for `tiebeam.torch.param_groups`.
        base_readout_factor: Likewise.
        ratios: Likewise.
        beside: For Muon: the factory of Adam's kind for all but the body's two-dimensional matrices.
        beside_lr: Its rate: a number or a schedule, as `lr` is.
        adam: Paths of further variables for `beside`: positions, a second head.
        **settings: For the factory. Those with a unit (epsilon, what an accumulator starts from) are scaled for tables.

    Returns:
        An optimizer of Keras; those of its groups are in `groups`.

    Raises:
        InputError: The report is of another model, the factory makes no optimizer, or there is nothing to train.
        RangeError: No rule holds for the optimizer, a table's ratio is unknown, or `base_width` does not apply.

    Example:
        >>> import keras, tiebeam, tiebeam.keras
        >>> from tiebeam.zoo.keras.gpt import gpt
        >>> model = gpt("D", vocab=99, width=64, layers=1)
        >>> report = tiebeam.inspect(model)
        >>> made = tiebeam.keras.optimizer(keras.optimizers.AdamW, model, report, lr=1e-3, weight_decay=0.5)
        >>> [(kind, round(one.weight_decay, 4)) for kind, one in zip(made.kinds, made.groups)]
        [('matrices', 0.5), ('vectors', 0.0), ('table token_embedding/embeddings', 0.0625)]
        >>> round(float(made.groups[2].learning_rate), 6)
        0.008
        >>> model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    """
    check_report(report)
    view = of_keras(model)
    made = Kind(factory, settings)
    law = made.law(optimizer)
    check_rates(weight_decay=weight_decay)
    _check_rates(law, lr, beside, beside_lr)
    parameters = parameters_of(view)
    tables = trained_tables(report.tables, view.variables)
    plan = plan_groups(
        parameters,
        tables,
        optimizer=law.name,
        base_width=base_width,
        base_readout_factor=base_readout_factor,
        ratios=ratios,
        decoupled=True,
    )
    groups = _split(plan.groups, view.variables, adam) if law.matrices else list(plan.groups)
    adam_kind = None if beside is None else Kind(beside, {})
    optimizers = []
    for group in groups:
        if adam_kind is not None and group.kind != "matrices":
            share = Share(*_beside_share(group.rate, lr, beside_lr))
            optimizers.append(adam_kind.optimizer(adam_kind.law(None), group, share, weight_decay))
        else:
            optimizers.append(made.optimizer(law, group, Share(group.rate), weight_decay))
    known = list(model.trainable_variables)
    place = {id(v): i for i, v in enumerate(known)}
    by_name = view.variables.by_name
    return GroupedOptimizer(
        optimizers,
        places=[[place[id(by_name[n].variable)] for n in g.names] for g in groups],
        shapes=[list(v.shape) for v in known],
        kinds=[f"table {g.names[0]}" if g.kind == "table" else g.kind for g in groups],
        known=known,
        learning_rate=lr if isinstance(lr, keras.optimizers.schedules.LearningRateSchedule) else float(lr),
        **made.of_all,
    )


class Kind:
    """What a factory makes, tried out once.

    Args:
        factory: Makes an optimizer of Keras.
        settings: What it is called with beside a rate.

    Raises:
        InputError: It makes something else.
    """

    def __init__(self, factory: Factory, settings: Mapping[str, Any]) -> None:
        if isinstance(factory, keras.optimizers.Optimizer):
            name = type(factory).__name__
            raise InputError(
                "the factory is to be called, once for each group",
                got=f"an optimizer that is made: {name}(...)",
                expected="its class, or a function that makes one",
                hint=f"pass the class {name}, not {name}(...); what it takes beside lr= are settings of this call",
            )
        check_factory(factory, example="keras.optimizers.AdamW")
        # A number: the config of a schedule goes through what imports TensorFlow on every backend.
        sample = factory(learning_rate=1.0, **settings)
        if not isinstance(sample, keras.optimizers.Optimizer):
            raise InputError(
                "the factory makes no optimizer of Keras",
                got=f"a {type(sample).__name__}",
                expected="an optimizer class of keras.optimizers, or a function that returns one of its instances",
            )
        self.made = type(sample)
        self.config: dict[str, Any] = sample.get_config()
        self.of_all = {key: self.config[key] for key in OF_ALL if key in self.config}

    def law(self, said: str | None) -> Rule:
        """The family's rule.

        Raises:
            RangeError: None holds, or the class names no family.
        """
        return rule(said or family_in(self.made) or self.made.__name__)

    def optimizer(self, law: Rule, group: Group, share: Share, weight_decay: float | None) -> Any:
        """One for a group."""
        nothing: dict[str, Any] = {
            "global_clipnorm": None, "use_ema": False, "loss_scale_factor": None, "gradient_accumulation_steps": None,
        }  # fmt: skip
        config = {**self.config, **{k: v for k, v in nothing.items() if k in self.config}}
        config |= {"learning_rate": share, "name": f"{self.config['name']}_{group.kind}"}
        decay = config.get("weight_decay") if weight_decay is None else weight_decay
        if decay is not None:
            config["weight_decay"] = decay * group.decay
        units = {**UNITS, "epsilon": "square"} if law.name in UNDER_THE_ROOT else UNITS
        for name, quantity in units.items():
            if config.get(name) is not None and group.ratio != 1.0:
                config[name] = config[name] * group.factor(quantity)
        if law.matrices and group.kind == "matrices":  # they were chosen by what they are: no name may undo it
            config |= {k: v for k, v in (("exclude_embeddings", False), ("exclude_layers", [])) if k in config}
        return self.made.from_config(config)


def family_in(made: type) -> str | None:
    """The family that a class, or one that it descends from, is named after; Adam's decay stands beside the step."""
    found = family_of_class(made)
    return "adamw" if found == "adam" else found


def parameters_of(view: KerasModel) -> list[Parameter]:
    """Every variable of a model that is a parameter, once."""
    lookups = lookup_variables(view.layers)

    def one(v: Named) -> Parameter:
        axes = sum(n != 1 for n in v.variable.shape)
        return Parameter(v.names, axes, id(v.variable) in lookups, v.trainable and v.floating)

    return [one(v) for v in view.variables.parameters]


def lookup_variables(layers: Layers) -> set[int]:
    """Variables, by id, of layers that do nothing but look rows up."""
    found = [layer for layer in layers.all if isinstance(layer, keras.layers.Embedding)]
    return {id(v) for layer in found for v in layer.trainable_variables}


def trained_tables(tables: Sequence[Table], variables: Variables) -> list[Table]:
    """The report's tables without those that are no variables of Keras: its optimizers do not know them."""
    return [t for t in tables if t.trainable or any(n in variables.by_name for n in t.names)]


def _check_rates(law: Rule, lr: Rate, beside: Factory | None, beside_lr: Rate | None) -> None:
    check_beside(law, beside, beside_lr, example="keras.optimizers.AdamW")
    rates = [lr] if beside is None else [lr, beside_lr]
    scheduled = [isinstance(r, keras.optimizers.schedules.LearningRateSchedule) for r in rates]
    numbers = [isinstance(r, int | float) and 0 < r < math.inf for r in rates]
    if not (all(scheduled) or all(numbers)):
        raise RangeError(
            "learning rates of a Keras optimizer",
            got=" and ".join(repr(r) for r in rates),
            expected="positive numbers, or schedules of keras.optimizers.schedules",
            hint="write a function of the step as a LearningRateSchedule: only that can be saved",
        )


def _beside_share(factor: float, lr: Rate, beside_lr: Rate) -> tuple[float, Any]:
    """What a group of the optimizer beside takes: a share of the whole's number, or of a schedule of its own."""
    return (factor, beside_lr) if callable(beside_lr) else (beside_lr / lr * factor, None)


def _split(groups: Sequence[Group], variables: Variables, kept: Collection[str]) -> list[Group]:
    """Matrices that an optimizer of matrices takes apart from those that it does not."""
    if unknown := [n for n in kept if n not in variables.by_name]:
        raise InputError("adam= names what is no variable", got=", ".join(unknown), expected="paths of variables")
    owners = {variables.by_name[n].name for n in kept}

    def fits(name: str) -> bool:
        return len(variables.by_name[name].variable.shape) == 2 and name not in owners

    return split_matrices(groups, fits)
