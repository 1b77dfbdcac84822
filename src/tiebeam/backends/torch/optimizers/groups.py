"""Parameter groups for PyTorch optimizers: the plan of `core.groups`, with parameters in it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tiebeam.backends.torch.names import all_parameters, named_tensors
from tiebeam.backends.torch.optimizers.families import family_in
from tiebeam.backends.torch.wrapped import inside, joined
from tiebeam.core.facts import Table
from tiebeam.core.report import Report
from tiebeam.core.training.groups import (
    Group,
    GroupPlan,
    Parameter,
    check_rates,
    check_report,
    owners_of,
    plan_groups,
)
from tiebeam.core.training.optimizers import Quantity, Rule, rule
from tiebeam.errors import InputError, RangeError

Rate = float | Tensor | None
Groups = list[dict[str, Any]]
Eps = float | tuple[float, float]

DEFAULT_EPS: Mapping[str, float] = {
    **dict.fromkeys("adamw adam nadam adamax rmsprop lars muon shampoo soap".split(), 1e-8),
    "adagrad": 1e-10,
    "lamb": 1e-6,
}
"""What these optimizers take where nobody says otherwise. Adafactor is left out: implementations add it elsewhere."""


class MuonSplit(NamedTuple):
    """Groups for two optimizers that share a model.

    Attributes:
        muon: The matrices of the body.
        adam: Everything else.
    """

    muon: Groups
    adam: Groups


def inventory(model: nn.Module) -> tuple[list[Parameter], dict[str, nn.Parameter]]:
    """Every parameter of a model once, and the objects by their owner's path."""
    paths: dict[int, list[str]] = {}
    held: dict[int, nn.Parameter] = {}
    for name, p in all_parameters(model).items():
        paths.setdefault(id(p), []).append(name)
        held[id(p)] = p
    lookups = {
        id(p)
        for m in model.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag)
        for p in m.parameters(recurse=False)
    }
    found = [Parameter(tuple(names), _axes(held[i]), i in lookups, held[i].requires_grad) for i, names in paths.items()]
    return found, {p.names[0]: held[i] for p, i in zip(found, paths, strict=True)}


def _axes(p: Tensor) -> int:
    return sum(n != 1 for n in p.shape)


def param_groups(
    model: nn.Module,
    report: Report,
    *,
    lr: Rate,
    weight_decay: float = 0.0,
    optimizer: str | type[torch.optim.Optimizer] | torch.optim.Optimizer = "adamw",
    base_width: int | None = None,
    base_readout_factor: float = 1.0,
    eps: Eps | None = None,
    ratios: Mapping[str, float] | None = None,
) -> Groups:
    """Make the parameter groups of a model, its tables at their own rate.

    Every trainable parameter is in exactly one group: matrices first, then vectors (norms, biases), which are not
    decayed, then each table by itself. Which parameter is a table, the report says; names decide nothing. The rate
    of a table that is read out is `lr * c**k`, its decay and eps follow; `docs/training.md` lists the powers.

    Args:
        model: The model, wrapped and sharded as it will be trained.
        report: Of `tiebeam.inspect(model, ...)`, or of the same model before it was sharded or wrapped.
        lr: Rate of the body: a number, a tensor of one element, or None where the optimizer sets its own
            (Adafactor's relative step).
        weight_decay: Of the body's matrices.
        optimizer: Family of the optimizer that the groups are for: "sgd", "adamw", "adam", "nadam", "adamax", "lion",
            "rmsprop", "adagrad", "adafactor", "adafactor-unscaled", "lamb" or "lars". 8-bit, paged and fused variants
            count as the plain one. Or the optimizer's class, or one made of it, by what that is called.
        base_width: Width at which `lr` was found. Rates of the body's matrices, and of tables before their ratio,
            are multiplied by `base_width / width`; those of vectors and of lookups alone are not.
        base_readout_factor: The readout factor that the model has at that width.
        eps: The optimizer's eps, which stands in every group then, tables with their share; a pair for Adafactor.
            None: the family's default, where a table's ratio is not 1.
        ratios: `c` by a table's name, where it is not to be the report's `lr_ratio`.

    Returns:
        Dictionaries with "params", "lr" and "weight_decay", and "eps" (see there), for any
        `torch.optim.Optimizer`.

    Raises:
        InputError: The report is of another model, two parameters share a storage, or nothing is trainable.
        RangeError: No rule holds for the optimizer, a table's ratio is unknown, or `base_width` does not apply.

    Example:
        >>> import torch, tiebeam, tiebeam.torch
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> with torch.device("meta"):
        ...     model, ids = MiniGPT(MiniGPTConfig.from_scheme("D", vocab=99, width=64)), torch.zeros(1, 8).long()
        >>> groups = tiebeam.torch.param_groups(model, tiebeam.inspect(model, ids), lr=1e-3, weight_decay=0.5)
        >>> [(len(g["params"]), g["lr"], g["weight_decay"]) for g in groups]
        [(16, 0.001, 0.5), (18, 0.001, 0.0), (1, 0.008, 0.0625)]
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
    """
    law = rule(
        family_in(optimizer, optimizer.defaults) or optimizer
        if isinstance(optimizer, torch.optim.Optimizer)
        else optimizer
    )
    if law.matrices:
        raise RangeError(
            f"{law.name} takes the matrices of the body alone",
            got=f"optimizer={optimizer if isinstance(optimizer, str) else law.name!r}",
            expected="two optimizers, the table in the Adam one",
            hint="call tiebeam.torch.split_for_muon(model, report, lr=..., muon_lr=...), for shampoo and soap too",
        )
    if lr is None and law.rate:
        raise RangeError(
            f"the table's rate is a multiple of lr under {law.name}",
            got="lr=None",
            expected="a learning rate",
            hint="a relative step has no rate to multiply: switch it off, or scale by parameters",
        )
    check_rates(lr=lr, weight_decay=weight_decay)
    _check_eps(law, eps)
    plan, held = _planned(
        model, report, optimizer=law.name, base_width=base_width, base_readout_factor=base_readout_factor, ratios=ratios
    )
    return [_group(plan, g, held, lr, weight_decay, eps) for g in plan.groups]


def split_for_muon(
    model: nn.Module,
    report: Report,
    *,
    lr: Rate,
    muon_lr: Rate,
    weight_decay: float = 0.0,
    muon_weight_decay: float | None = None,
    eps: float | None = None,
    adam: Collection[str] = (),
    ratios: Mapping[str, float] | None = None,
) -> MuonSplit:
    """Split a model for Muon, Shampoo or SOAP beside AdamW.

    Muon gets the two-dimensional matrices of the body. Everything else is AdamW's: tables at `c` times its rate,
    embeddings, vectors, and whatever has more than two axes.

    Args:
        model: As for `param_groups`.
        report: As for `param_groups`.
        lr: AdamW's rate.
        muon_lr: Muon's rate.
        weight_decay: AdamW's decay of embeddings and tables.
        muon_weight_decay: Muon's; None is `weight_decay`.
        eps: AdamW's.
        adam: Names of further parameters for AdamW that nothing in their structure tells from a layer: positions
            that are a bare parameter, a second head.
        ratios: As for `param_groups`.

    Returns:
        `muon` and `adam`, groups for the two optimizers; together they partition the trainable parameters.

    Raises:
        InputError: As for `param_groups`; or the body has no matrix, or `adam` names no parameter.
        RangeError: As for `param_groups`.

    Source: Jordan et al. 2024, Muon: hidden matrices alone; embeddings, heads and vectors with AdamW.

    Example:
        >>> import torch, tiebeam, tiebeam.torch
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> with torch.device("meta"):
        ...     model, ids = MiniGPT(MiniGPTConfig.from_scheme("D", vocab=99, width=64)), torch.zeros(1, 8).long()
        >>> muon, adam = tiebeam.torch.split_for_muon(model, tiebeam.inspect(model, ids), lr=1e-3, muon_lr=0.02)
        >>> [(len(g["params"]), g["lr"]) for g in (*muon, *adam)]
        [(16, 0.02), (18, 0.001), (1, 0.008)]
        >>> optimizers = torch.optim.Muon(muon), torch.optim.AdamW(adam)
    """
    check_rates(lr=lr, muon_lr=muon_lr, weight_decay=weight_decay, muon_weight_decay=muon_weight_decay)
    plan, held = _planned(model, report, optimizer="muon", ratios=ratios)
    owners = {n: p.names[0] for p in inventory(model)[0] for n in p.names}
    if unknown := [n for n in adam if n not in owners]:
        raise InputError("adam= names what is no parameter", got=", ".join(unknown), expected="paths of parameters")
    kept = {owners[n] for n in adam}
    muon: list[Tensor] = []
    others: Groups = []
    for group in plan.groups:
        if group.kind != "matrices":
            others.append(_group(plan, group, held, lr, weight_decay, eps))
            continue
        fits = {n: held[n].ndim == 2 and n not in kept for n in group.names}
        muon += [held[n] for n, fit in fits.items() if fit]
        if rest := tuple(n for n, fit in fits.items() if not fit):
            others.append(_group(plan, Group("matrices", rest), held, lr, weight_decay, eps))
    if not muon:
        raise InputError(
            f"{type(model).__name__} has no matrix for Muon",
            got="tables, embeddings and vectors alone",
            hint="use tiebeam.torch.param_groups with one optimizer",
        )
    decay = weight_decay if muon_weight_decay is None else muon_weight_decay
    return MuonSplit([{"params": muon, "lr": muon_lr, "weight_decay": decay}], others)


def _planned(model: nn.Module, report: Report, **asked: Any) -> tuple[GroupPlan, dict[str, nn.Parameter]]:
    check_report(report)
    prefix, _ = inside(model, report)
    parameters, held = inventory(model)
    _check_shapes(report, held, parameters, prefix)
    said = asked.pop("ratios", None)
    plan = plan_groups(
        parameters,
        _named(report, model, prefix),
        ratios=None if said is None else {joined(prefix, n): c for n, c in said.items()},
        **asked,
    )
    check_disjoint((n, held[n]) for g in plan.groups for n in g.names)
    return plan, held


def tables_of(
    parameters: Iterable[Parameter], report: Report, model: nn.Module
) -> tuple[tuple[Table, ...], dict[str, tuple[str, ...]]]:
    """The report's tables by the model's paths, and the trainable parameters that each one is.

    Raises:
        InputError: One is not the model's.
    """
    check_report(report)
    parameters = list(parameters)
    prefix, _ = inside(model, report)
    tables = _named(report, model, prefix)
    found = {t.name: tuple(p.names[0] for p in owners_of(t, parameters) if p.trainable) for t in tables}
    return tables, {name: owners for name, owners in found.items() if owners}


def _check_shapes(
    report: Report, held: Mapping[str, nn.Parameter], parameters: Iterable[Parameter], prefix: str
) -> None:
    """Refuse a report whose table has another size than the parameter of that name.

    Where names and sizes are the same, another instance of the model is as good as this one.
    """
    owners = {n: p.names[0] for p in parameters for n in p.names}
    for t in report.tables:
        owner = next((owners[n] for n in (joined(prefix, n) for n in t.names) if n in owners), None)
        if owner is None:
            continue  # said by the plan
        shape = tuple(n for n in held[owner].shape if n != 1)
        if len(shape) == 2 and not (t.vocab in shape and t.width in shape):
            raise InputError(
                f"the report is of another model: its table {t.name!r} has other sizes",
                got=f"a parameter of shape {tuple(held[owner].shape)}",
                expected=f"vocab {t.vocab} and width {t.width}, as {report.model} had",
                hint="report = tiebeam.inspect(model, inputs), after resizing and loading",
            )


def _named(report: Report, model: nn.Module, prefix: str) -> tuple[Table, ...]:
    # A table that is a buffer is no optimizer's business: it is like a frozen one.
    elsewhere = {n for n, _, is_parameter in named_tensors(model) if not is_parameter}
    tables = (_renamed(t, prefix) for t in report.tables)
    return tuple(t for t in tables if not elsewhere.issuperset(t.names))


def _renamed(table: Table, prefix: str) -> Table:
    return replace(table, names=tuple(joined(prefix, n) for n in table.names)) if prefix else table


def _group(
    plan: GroupPlan, group: Group, held: Mapping[str, nn.Parameter], lr: Rate, weight_decay: float, eps: Eps | None
) -> dict[str, Any]:
    made: dict[str, Any] = {"params": [held[n] for n in group.names]}
    if lr is not None:
        made["lr"] = lr * group.rate
    made["weight_decay"] = weight_decay * group.decay
    settings = rule(plan.optimizer).settings
    if eps is None and any(g.ratio != 1.0 for g in plan.groups):
        eps = DEFAULT_EPS.get(plan.optimizer)  # in every group, or the others would keep the constructor's
    if eps is not None:
        made["eps"] = _eps(settings, group, eps)
    return made


def _eps(settings: Mapping[str, Quantity], group: Group, eps: Eps) -> Eps:
    scale = group.factor(settings["eps"])
    if not isinstance(eps, tuple):
        return eps * scale
    added, floor = eps
    return (added * scale, floor * group.factor(settings["floor"]) if "floor" in settings else floor)


def _check_eps(law: Rule, eps: Eps | None) -> None:
    if eps is None:
        return
    if "eps" not in law.settings:
        raise RangeError(f"{law.name} has no eps", got=f"eps={eps!r}", hint="leave it out")
    if isinstance(eps, tuple) != law.name.startswith("adafactor"):
        raise RangeError(
            f"eps of {law.name}",
            got=repr(eps),
            expected="a number; for adafactor a pair: what is added to squared gradients, and the least parameter size",
        )


def check_disjoint(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters that share memory.

    Raises:
        InputError: Two do.
    """
    if pair := next(overlapping(parameters), None):
        raise InputError(
            f"{pair[0]!r} and {pair[1]!r} are two parameters on one storage",
            got="each holds a part of the gradient, and an optimizer would step the memory twice",
            expected="one parameter object wherever memory is shared",
            hint=f"tie them: give the module that owns {pair[1]!r} the parameter {pair[0]!r} itself",
        )


def overlapping(parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Pairs of names whose tensors share elements of one storage; views of disjoint spans do not.

    The storage object counts, never the address: on meta every address is 0.
    """
    spans: dict[int, list[tuple[int, int, str]]] = {}
    keep = []  # an id is a storage's as long as the storage lives
    for name, p in parameters:
        local = getattr(p, "_local_tensor", p)  # of a sharded tensor, what lies here
        if type(local) not in (Tensor, nn.Parameter) or local.layout is not torch.strided or not local.numel():
            continue  # a subclass keeps its numbers in tensors of its own
        reach: int = sum((n - 1) * s for n, s in zip(local.shape, local.stride(), strict=True)) + 1
        if reach != local.numel():
            continue  # columns of a wider matrix: others may lie between them
        storage = local.untyped_storage()
        keep.append(storage)
        first = int(local.storage_offset() * local.element_size())
        spans.setdefault(storage._cdata, []).append((first, first + reach * local.element_size(), name))
    for several in spans.values():
        several.sort()
        for (_, end, a), (start, _, b) in pairwise(several):
            if start < end:
                yield a, b
