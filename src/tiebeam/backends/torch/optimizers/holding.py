"""What PyTorch optimizers hold of a model, as facts for core; read, never written."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from tiebeam.backends.torch.optimizers.families import family_in
from tiebeam.backends.torch.optimizers.groups import inventory, overlapping, tables_of
from tiebeam.backends.torch.optimizers.schedules import follow, nested
from tiebeam.core.findings.optimizers import HeldGroup, OptimizerFacts, Schedule
from tiebeam.core.report import Report
from tiebeam.core.training.optimizers import RULES
from tiebeam.errors import InputError


def facts_of(
    optimizer: Any, model: nn.Module, report: Report, scheduler: Any = None, family: str | None = None
) -> tuple[OptimizerFacts, tuple[str, ...]]:
    """Facts of one or several optimizers of a model, and what could not be read.

    Raises:
        InputError: An optimizer has no groups, a scheduler is of none of them, or the report is of another model.
    """
    several = isinstance(optimizer, Sequence)
    optimizers = [inner(o) for o in (optimizer if several else [optimizer])]
    parameters, held = inventory(model)
    owner = {id(held[p.names[0]]): p.names[0] for p in parameters}
    groups: list[HeldGroup] = []
    firsts: list[int] = []
    stale = 0
    for k, one in enumerate(optimizers):
        firsts.append(len(groups))
        for i, group in enumerate(one.param_groups):
            place = f"group {i}" + (f" of optimizer {k}" if several else "")
            groups.append(_held(one, group, place, k, owner, family))
            stale += sum(id(p) not in owner for p in group["params"])
    stepped = [n for g in groups for n in g.elements]
    tables, owners = tables_of(parameters, report, model)
    schedules, notes = _schedules(scheduler, optimizers, firsts)
    facts = OptimizerFacts(
        tables=tables,
        owners=owners,
        groups=groups,
        fixes=TorchOptimizerFixes(optimizers, scheduler, groups, firsts, several=several),
        stale=stale,
        missing=[p.names[0] for p in parameters if p.trainable and p.names[0] not in stepped],
        twice=list(overlapping((n, held[n]) for n in dict.fromkeys(stepped))),
        schedules=schedules,
    )
    return facts, notes


def inner(wrapped: Any) -> Any:
    """The optimizer inside wrappers that scale, accelerate or shard its step."""
    inner = wrapped
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(getattr(inner, "param_groups", None), list):
        raise InputError(
            f"a {type(wrapped).__name__} is no optimizer",
            got=f"the class {wrapped.__name__}" if isinstance(wrapped, type) else "no param_groups",
            expected="a torch.optim.Optimizer, or a list of them",
            hint="make it first, and pass the one that steps: optimizer = torch.optim.AdamW(groups)",
        )
    return inner


def _held(
    one: Any, group: Mapping[str, Any], place: str, k: int, owner: Mapping[int, str], family: str | None
) -> HeldGroup:
    eps = group.get("eps")
    lr = group.get("initial_lr", group.get("lr"))
    decay = group.get("weight_decay")
    return HeldGroup(
        place=place,
        optimizer=k,
        family=family or family_in(one, group),
        lr=None if lr is None else float(lr),
        weight_decay=None if decay is None else float(decay),
        eps=float(eps) if isinstance(eps, int | float) else None,
        elements={owner[id(p)]: p.numel() for p in group["params"] if id(p) in owner},
    )


def _schedules(
    scheduler: Any, optimizers: Sequence[Any], firsts: Sequence[int]
) -> tuple[list[Schedule], tuple[str, ...]]:
    found, notes = [], []
    for one in [] if scheduler is None else scheduler if isinstance(scheduler, Sequence) else [scheduler]:
        while not hasattr(one, "optimizer") or hasattr(one, "scheduler"):
            if not hasattr(one, "scheduler"):
                raise InputError(f"a {type(one).__name__} is no scheduler of PyTorch", got="no optimizer in it")
            one = one.scheduler
        target = inner(one.optimizer)
        place = next((i for i, o in enumerate(optimizers) if o is target), None)
        if place is None:
            raise InputError(
                f"{type(one).__name__} is of another optimizer",
                got=f"a schedule of a {type(target).__name__}",
                expected="the optimizer that is inspected",
                hint="build the scheduler on it anew",
            )
        try:
            found.append(follow(one, target, firsts[place]))
        except TypeError as error:
            notes.append(f"{type(one).__name__} was not followed: it cannot be copied ({error})")
    return found, tuple(notes)


class TorchOptimizerFixes:
    """`core.findings.optimizers.OptimizerFixes` for PyTorch."""

    def __init__(
        self, optimizers: Sequence[Any], scheduler: Any, groups: Sequence[HeldGroup], firsts: Sequence[int], *,
        several: bool,
    ) -> None:  # fmt: skip
        self.optimizers, self.scheduler, self.several = optimizers, scheduler, several
        self.groups, self.firsts = groups, firsts

    def _name(self, k: int) -> str:
        return f"optimizer[{k}]" if self.several else "optimizer"

    def rebuild(self) -> str:
        """Only of one optimizer whose rule is known and whose settings can be written down."""
        body = max(self.groups, key=lambda g: sum(g.elements.values()), default=None)
        law = None if body is None else RULES.get(body.family or "")
        if self.several or body is None or body.lr is None or law is None or law.matrices:
            return ""
        one = self.optimizers[0]
        taken = inspect.signature(type(one).__init__).parameters
        settings = {
            k: v
            for k, v in one.defaults.items()
            if k in taken and k not in ("lr", "weight_decay", "eps") and v != taken[k].default
        }
        if not all(isinstance(v, bool | int | float | tuple | str) for v in settings.values()):
            return ""
        more = "".join(f", {k}={v!r}" for k, v in settings.items())
        eps = f", eps={body.eps!r}" if body.eps is not None and "eps" in law.settings else ""
        return (
            f"groups = tiebeam.torch.param_groups(model, report, lr={body.lr!r}, "
            f"weight_decay={body.weight_decay or 0.0!r}, optimizer={law.name!r}{eps})\n"
            f"optimizer = type(optimizer)(groups, lr={body.lr!r}{more})"
        )

    def regroup(self, owner: str, home: int, **settings: float) -> str:
        k = self.groups[home].optimizer
        place = home - self.firsts[k]
        holders = [i for i, g in enumerate(self.groups) if owner in g.elements]
        own = self.optimizers[k].param_groups[place]
        if "initial_lr" in own and "lr" in settings:
            settings["initial_lr"] = settings["lr"]  # what a scheduler starts from
        said = ", ".join(f'"{name}": {value!r}' for name, value in settings.items() if name in own)
        if holders == [home] and len(own["params"]) == 1:
            return f"{self._name(k)}.param_groups[{place}].update({{{said}}})"
        names = [self._name(self.groups[i].optimizer) for i in holders]
        drop = "\n".join(
            f'for group in {name}.param_groups:\n    group["params"] = [p for p in group["params"] if p is not table]'
            for name in dict.fromkeys(names)
        )
        return (
            f"table = model.get_parameter({owner!r})\n{drop}\n"
            f"like = {self._name(k)}.param_groups[{place}]\n"
            f'{self._name(k)}.add_param_group({{**like, "params": [table]{", " + said if said else ""}}})'
        )

    def keep_ratio(self, owner: str, ratio: float) -> str:
        """Take an absolute least rate away; give the table's group a largest rate of its own."""
        if self.scheduler is None or isinstance(self.scheduler, Sequence):
            return ""
        lines = []
        for path, one in nested(self.scheduler):
            if getattr(one, "eta_min", 0.0):
                lines.append(f"scheduler{path}.eta_min = 0.0")
            if any(getattr(one, "min_lrs", ())):
                lines.append(f"scheduler{path}.min_lrs = [0.0] * len(scheduler{path}.min_lrs)")
        home = next(g for g in self.groups if owner in g.elements)
        own = self.optimizers[home.optimizer].param_groups[self.groups.index(home) - self.firsts[home.optimizer]]
        if "max_lr" in own and len(own["params"]) == 1:
            bounds = [key for key in ("lr", "initial_lr", "max_lr", "min_lr") if key in own]
            lines.append(
                f"table = model.get_parameter({owner!r})\n"
                f"for group in {self._name(home.optimizer)}.param_groups:\n"
                '    if any(p is table for p in group["params"]):\n'
                f"        group.update({{key: {ratio!r} * group[key] for key in {bounds!r}}})"
            )
        return "\n".join(lines)
