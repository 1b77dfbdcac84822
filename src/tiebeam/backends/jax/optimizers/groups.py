"""An optax transformation from the plan of `core.groups`: one copy of the caller's for each group, by exact path."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from tiebeam.backends.jax.kinds.tree import Tree, dotted
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
from tiebeam.core.training.optimizers import Quantity, Rule, family_of, rule
from tiebeam.errors import InputError, RangeError

Rate = Any  # a number, an array of one, or a schedule
Factory = Callable[..., optax.GradientTransformation]

DECAYS = ("weight_decay", "weight_decay_rate")
"""What optax's optimizers call their weight decay; the second is no multiple of the rate, so it has no unit."""

UNDER_THE_ROOT = {"adagrad": True, "rmsprop": "eps_in_sqrt"}
"""Where optax adds eps to the squared gradient, or which of the factory's arguments says so."""


def optimizer(
    tx_factory: Factory,
    report: Report,
    params: Any,
    *,
    lr: Rate,
    weight_decay: Rate | None = None,
    optimizer: str | None = None,
    base_width: int | None = None,
    base_readout_factor: float = 1.0,
    ratios: Mapping[str, float] | None = None,
    beside: Factory | None = None,
    beside_lr: Rate | None = None,
    adam: Collection[str] = (),
    **settings: Any,
) -> optax.GradientTransformationExtraArgs:
    """Make an optax transformation that trains a model's tables at their own rate.

    The factory is called once for each group of parameters: matrices, vectors (norms, biases), which are not
    decayed, and each table by itself. Groups are told by the exact path of a leaf in `params`, which the report
    knows; whatever else is called an embedding stays with the rest.

    Args:
        tx_factory: Called as `tx_factory(lr, **settings)`: an optimizer of optax, also through `functools.partial` or
            `optax.inject_hyperparams`, or a function of yours together with `optimizer=`.
        report: Of `tiebeam.inspect` on the model.
        params: The tree that is trained (arrays, or shapes by `jax.eval_shape`): a linen module's variables or their
            collection "params", `nnx.state(model, nnx.Param)`, `eqx.filter(model, eqx.is_inexact_array)`, or the
            params of a function.
        lr: Rate of the body: a number or a schedule.
        weight_decay: Of the body's matrices, a number or a schedule; None: what the factory takes by itself.
        optimizer: Family, where the factory's name does not say it; see `tiebeam.torch.param_groups`.
        base_width: As for `tiebeam.torch.param_groups`.
        base_readout_factor: Likewise.
        ratios: Likewise.
        beside: For Muon, Shampoo and SOAP: the factory of Adam's kind for all but the body's two-dimensional matrices.
        beside_lr: Its rate.
        adam: Paths of further leaves for `beside`: positions, a second head.
        **settings: For the factory. Those with a unit (eps, what an accumulator starts from) are scaled for tables.

    Returns:
        A transformation for `params`, its states by group in `inner_states`.

    Raises:
        InputError: The report is of another model, the factory is what one returned, or there is nothing to train.
        RangeError: No rule holds for the optimizer, a table's ratio is unknown, or `base_width` does not apply.

    Example:
        >>> import jax, jax.numpy as jnp, optax, tiebeam, tiebeam.jax
        >>> from tiebeam.zoo.jax.functional import FunctionalGpt
        >>> model = FunctionalGpt.of("D", vocab=99, width=64)
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> report = tiebeam.inspect(model, jnp.zeros((1, 8), int), params=params)
        >>> tx = tiebeam.jax.optimizer(optax.inject_hyperparams(optax.adamw), report, params, lr=1e-3)
        >>> state = tx.init(model.init(jax.random.key(0)))
        >>> [round(float(s.inner_state.hyperparams["learning_rate"]), 6) for s in state.inner_states.values()]
        [0.001, 0.001, 0.008]
    """
    check_report(report)
    law = _law(tx_factory, optimizer, settings)
    if lr is None:
        raise RangeError("lr is no rate", got="None", expected="a number or a schedule")
    check_rates(lr=lr, weight_decay=weight_decay, beside_lr=beside_lr)
    check_beside(law, beside, beside_lr, example="optax.adamw")
    named = Tree(params)
    parameters = [_parameter(n, a) for n, a in zip(named.names, named.arrays, strict=True)]
    plan = plan_groups(
        parameters,
        fitting(report.tables, named.names),
        optimizer=law.name,
        base_width=base_width,
        base_readout_factor=base_readout_factor,
        ratios=ratios,
    )
    groups = (
        _split(plan.groups, dict(zip(named.names, named.arrays, strict=True)), adam) if law.matrices else plan.groups
    )
    made: dict[str, optax.GradientTransformation] = {}
    labels: dict[str, str] = {p.names[0]: "fixed" for p in parameters}
    for group in groups:
        label = f"table {group.names[0]}" if group.kind == "table" else group.kind
        labels.update(dict.fromkeys(group.names, label))
        if law.matrices and group.kind != "matrices":
            assert beside is not None
            made[label] = _made(beside, _law(beside, None, {}), group, beside_lr, weight_decay, {})
        else:
            made[label] = _made(tx_factory, law, group, lr, weight_decay, settings)
    if "fixed" in labels.values():
        made["fixed"] = optax.set_to_zero()
    return optax.multi_transform(made, partial(_labelled, labels))


def _law(factory: Factory, said: str | None, settings: Mapping[str, Any]) -> Rule:
    if isinstance(factory, tuple):  # a transformation is a pair of functions
        raise InputError(
            "the factory is to be called, once for each group",
            got=f"a {type(factory).__name__}: what a factory of optax returned",
            expected="the factory itself",
            hint="pass optax.adamw, not optax.adamw(1e-3); what it takes beside lr= are settings of this call",
        )
    check_factory(factory, example="optax.adamw")
    if said is not None:
        return _as_set(rule(said), factory, settings)
    inner: Any = factory
    while isinstance(inner, partial):
        inner = inner.func
    name = str(getattr(inner, "__name__", type(inner).__name__))
    found = family_of(name)
    if found is None:
        raise RangeError(
            f"the family of {name!r} is not known",
            got="a factory whose name says none",
            expected="optimizer=, the name of the family that normalises as it does",
            hint="optimizer='adamw', for one",
        )
    return _as_set(rule(found), factory, settings)


def _as_set(law: Rule, factory: Factory, settings: Mapping[str, Any]) -> Rule:
    """Adafactor that does not multiply by the parameter's size goes by a rule of its own."""
    scaled = (_defaults(factory) | dict(settings)).get("multiply_by_parameter_scale", True)
    return law if law.name != "adafactor" or scaled else rule("adafactor-unscaled")


def _defaults(factory: Factory) -> dict[str, Any]:
    """What the factory takes where nothing is given."""
    return {n: p.default for n, p in _taken(factory).items() if p.default is not inspect.Parameter.empty}


def _taken(factory: Factory) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C, or hiding it
        return {}


def _parameter(name: str, array: Any) -> Parameter:
    floating = bool(jnp.issubdtype(array.dtype, np.inexact))  # JAX's own: it knows keys and narrow floats
    return Parameter((name,), sum(n != 1 for n in array.shape), trainable=floating)


def fitting(tables: tuple[Table, ...], names: list[str]) -> list[Table]:
    """Tables by the paths of this tree: linen's collection may stand before them, or not."""
    here = set(names)

    def fit(name: str) -> str:
        return next((n for n in (name, name.removeprefix("params."), f"params.{name}") if n in here), name)

    return [replace(t, names=tuple(map(fit, t.names))) for t in tables]


def _split(groups: Sequence[Group], arrays: Mapping[str, Any], kept: Collection[str]) -> list[Group]:
    """Matrices that an optimizer of matrices takes apart from those that it does not."""
    if unknown := [n for n in kept if n not in arrays]:
        raise InputError("adam= names what is no leaf", got=", ".join(unknown), expected="paths in params")
    return split_matrices(groups, lambda name: len(arrays[name].shape) == 2 and name not in kept)


def _made(
    factory: Factory, law: Rule, group: Group, lr: Rate, weight_decay: Rate | None, settings: Mapping[str, Any]
) -> optax.GradientTransformation:
    """The caller's optimizer with what a group's parameters need."""
    taken, own = _taken(factory), _defaults(factory) | dict(settings)
    given = dict(settings)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    decay_name = next((n for n in DECAYS if n in taken), DECAYS[0] if open_ended else None)
    decay = own.get(decay_name) if weight_decay is None and decay_name else weight_decay
    if decay_name and decay is not None:
        given[decay_name] = times(decay, group.decay if decay_name == DECAYS[0] else float(group.decay != 0))
    elif weight_decay is not None and not (np.isscalar(weight_decay) and weight_decay == 0):
        raise RangeError(
            f"the factory takes no weight decay, but weight_decay={weight_decay!r} is given",
            got=f"{', '.join(taken)}",
            expected=f"an argument {DECAYS[0]!r}",
            hint="pass a factory that has one, such as optax.adamw, or chain optax.add_decayed_weights in your own",
        )
    if group.ratio != 1.0:
        for name, quantity in _quantities(law, own).items():
            if own.get(name) is not None:
                given[name] = times(own[name], group.factor(quantity))
    return factory(times(lr, group.rate), **given)


def _quantities(law: Rule, own: Mapping[str, Any]) -> dict[str, Quantity]:
    found = {n: q for n, q in law.settings.items() if n in own}
    under = UNDER_THE_ROOT.get(law.name, False)
    if "eps" in found and (own.get(under, True) if isinstance(under, str) else under):
        found["eps"] = "square"
    return found


def times(value: Rate, factor: float) -> Rate:
    """A number, or a schedule, times a factor."""
    if factor == 1.0 or not callable(value):
        return value * factor if factor != 1.0 else value
    return lambda step: value(step) * factor


def _labelled(labels: Mapping[str, str], tree: Any) -> Any:
    """The tree with a group's label at each leaf."""

    def label(path: Any, leaf: Any) -> str:
        name = dotted(path)
        if name not in labels:
            raise InputError(
                f"the optimizer was made for other params: it knows no {name!r}",
                got=f"a leaf of type {type(leaf).__name__}",
                expected=", ".join(list(labels)[:3]) + ", ...",
                hint="make it with the tree that init and update are called with",
            )
        return labels[name]

    return tree_util.tree_map_with_path(label, tree)
