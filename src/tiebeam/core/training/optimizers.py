"""How each optimizer's numbers change when a table is written as `T = c * U`: dimensional analysis, as data.

Reading `c` as a unit, the table has unit `c` and its gradient `1/c`, for `dL/dU = c * dL/dT`. The training of `T` is
that of `U` times `c` at every step, exactly, where everything an optimizer adds up has one unit and its update has
the unit of the table. A row says which power of `c` that takes; betas, momentum, warmup and bias correction have no
unit and stay as they are. Powers of two commute with rounding, so for those the two trainings are equal bit by bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tiebeam.errors import RangeError

Quantity = Literal["gradient", "square", "parameter"]

POWERS: Mapping[Quantity, int] = {"gradient": -1, "square": -2, "parameter": 1}
"""Power of `c` of a number that stands beside a gradient, its square, or a parameter's size."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One family of optimizers.

    Attributes:
        name: What `optimizer=` takes.
        rate: Power of `c` that multiplies the table's learning rate.
        decay: Power of `c` that multiplies its weight decay.
        decay_is: Where the decay enters, for which that power holds.
        settings: Other settings that have a unit, by the name that most implementations give them.
        why: The derivation.
        entrywise: The update of an entry has the size of the rate, whatever the gradient's: what `base_width` needs.
        matrices: It works on matrices of the body alone: the table goes to an Adam group beside it.
    """

    name: str
    rate: int
    decay: int
    decay_is: str
    settings: Mapping[str, Quantity]
    why: str
    entrywise: bool = False
    matrices: bool = False

    def decay_power(self, *, decoupled: bool) -> int:
        """Power of `c` of the weight decay, also where it is subtracted, times the rate, beside the step.

        Rate times decay is then a share of the table, which has no unit.

        Example:
            >>> rule("adam").decay_power(decoupled=False), rule("adam").decay_power(decoupled=True)
            (-2, -1)
        """
        return -self.rate if decoupled else self.decay


_L2, _FREE, _UPDATE = "added to the gradient", "subtracted beside the step", "added to the normalised update"
_EPS: Mapping[str, Quantity] = {"eps": "gradient", "eps_root": "square"}


def _adam(name: str, decay: int, decay_is: str, why: str, settings: Mapping[str, Quantity] = _EPS) -> Rule:
    return Rule(name, 1, decay, decay_is, settings, why, entrywise=True)


_RULES = (
    # The step is rate * gradient: of unit 1/c, where the table has c. Momentum adds gradients up.
    # A decay added to the gradient (1/c) multiplies the table (c).
    Rule("sgd", 2, -2, _L2, {}, "the step is rate × gradient, of unit 1/c, and must have unit c"),
    # m / (sqrt(v) + eps) has no unit, so the rate carries the table's; eps stands beside sqrt(v), of unit 1/c.
    # rate * decay is a share of the table and has no unit.
    _adam("adamw", -1, _FREE, "m / (sqrt(v) + eps) has no unit, so the rate has the table's"),
    # As AdamW; the decay is added to the gradient (1/c) and multiplies the table (c).
    _adam("adam", -2, _L2, "as AdamW; wd × table joins the gradient, of unit 1/c"),
    # NAdam, RAdam and Adamax normalise as Adam does, their decay joins the gradient.
    # (RAdam's first steps are plain momentum, rate * m, of unit 1/c: no single rate serves both, so it has no row.)
    _adam("nadam", -2, _L2, "as Adam"),
    _adam("adamax", -2, _L2, "as Adam; the largest gradient stands for sqrt(v)"),
    # The sign of the momentum has no unit. There is no eps.
    _adam("lion", -1, _FREE, "sign(m) has no unit, so the rate has the table's", {}),
    # gradient / (sqrt(v) + eps) has no unit; momentum adds such updates up.
    # Decay, where there is one, is added to the gradient.
    _adam("rmsprop", -2, _L2, "gradient / (sqrt(v) + eps) has no unit", {**_EPS, "initial_scale": "square"}),
    # As RMSprop with a sum for the mean; what the sum starts from is a squared gradient.
    # Decay is added to the gradient.
    _adam(
        "adagrad", -2, _L2, "as RMSprop; the sum starts from a squared gradient",
        {**_EPS, "initial_accumulator_value": "square"},
    ),
    # The update has no unit and is multiplied by the table's own root mean square: the rate has none.
    # The floor of that mean is a parameter's size; the other eps is added to the squared gradient.
    Rule(
        "adafactor", 0, 0, _FREE, {"eps": "square", "floor": "parameter"},
        "the update has no unit and is multiplied by the table's own size",
    ),
    # Without that factor the rate has the table's unit, as Adam's.
    # rate * decay has none.
    _adam("adafactor-unscaled", -1, _FREE, "without parameter scaling the rate has the table's unit",
          {"eps": "square"}),
    # The update, u + wd * table, has no unit; its norm is replaced by the table's.
    # So the rate has none, and the decay is of unit 1/c.
    Rule("lamb", 0, -1, _UPDATE, _EPS, "the update's norm is replaced by the table's"),
    # The same for gradient + wd * table, of unit 1/c, whose norm eps stands beside.
    # So the rate has none, and the decay is of unit 1/c**2.
    Rule("lars", 0, -2, _L2, {"eps": "gradient"}, "the gradient's norm is replaced by the table's"),
    # An orthogonalised momentum has no unit; but a table's rows are met one at a time, which orthogonalising undoes.
    # So the table is in an Adam group: powers as AdamW's, times that group's own rate.
    Rule("muon", 1, -1, _FREE, _EPS, "the table is in an Adam group beside it", matrices=True),
    # (1/c**2)**(-1/4) on both sides times a gradient of 1/c: no unit. A factor of (vocab, vocab) is out of reach.
    # So the table is in an Adam group.
    Rule("shampoo", 1, -1, _FREE, _EPS, "the table is in an Adam group beside it", matrices=True),
    # Adam in the eigenbasis of Shampoo's factors: bases have no unit, Adam's update has none.
    # So the table is in an Adam group.
    Rule("soap", 1, -1, _FREE, _EPS, "the table is in an Adam group beside it", matrices=True),
)  # fmt: skip

RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}

REFUSED: Mapping[str, str] = {
    "adadelta": "its one eps stands beside squared gradients, of unit 1/c**2, and beside squared steps, of unit c**2: "
    "no value of it and of the rate serves both",
    "radam": "its first steps are momentum times the rate and the later ones are normalised: the rate would have to be "
    "c**2 first and c then",
    "rprop": "its rate is only where the step sizes start; their bounds are one setting for all groups' entries",
    "lbfgs": "it takes one group alone",
}
"""Optimizers for which no rule holds, and why."""


def rule(name: object) -> Rule:
    """Return the rule of a family.

    Args:
        name: The family's, in whatever case; or an optimizer's class, what makes one or one that is made, by the name
            that it has.

    Raises:
        RangeError: The name is unknown, or no rule holds.

    Example:
        >>> rule("sgd").rate, rule("AdamW").rate, rule("lamb").rate
        (2, 1, 0)
    """
    if not isinstance(name, str):
        kind = name if isinstance(name, type) else type(name)
        called = str(getattr(name, "__name__", kind.__name__))
        name = family_of(called) or family_of_class(kind) or called
    known = name.lower().replace("_", "-")
    if known in RULES:
        return RULES[known]
    if known in REFUSED:
        raise RangeError(
            f"no learning-rate rule holds for {known}",
            got=REFUSED[known],
            expected=f"one of {', '.join(RULES)}",
            hint="train with one of those; or set the table's group by hand",
        )
    raise RangeError(
        "the optimizer's family is unknown",
        got=f"optimizer={name!r}",
        expected=f"one of {', '.join(RULES)}",
        hint="name the one that normalises as yours does: 8-bit, paged and fused variants count as the plain one",
    )


_PREFIXES = ("paged", "fused", "foreach", "distributed", "deepspeedcpu", "cpu", "_", "wrapped")
_SUFFIXES = ("optimizer", "8bit", "4bit", "32bit", "fp8", "bnb", "gpu", "legacy")
_ALIASES = {
    "nadamw": "adamw",
    "adamaxw": "adamw",
    "sparseadam": "adam",
    "adamwscale": "adamw",
    "sgdw": "sgd",
    "muonwithauxadam": "muon",
    "distributedshampoo": "shampoo",
}


def family_of(class_name: str) -> str | None:
    """The family that a class's name says, variants counted as the plain one; None where it says none.

    Example:
        >>> family_of("PagedAdamW8bit"), family_of("FusedLAMB"), family_of("Mine")
        ('adamw', 'lamb', None)
    """
    name = class_name.lower()
    while name:
        found = _ALIASES.get(name, name)
        if found in RULES or found in REFUSED:
            return found
        shorter = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), None)
        shorter = shorter or next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), None)
        if not shorter:
            return None
        name = shorter
    return None


def family_of_class(kind: type) -> str | None:
    """The family that a class, or the nearest of those that it descends from, is named after; None where none is."""
    return next((found for found in map(family_of, (c.__name__ for c in kind.__mro__)) if found), None)
