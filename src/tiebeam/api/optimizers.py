"""`tiebeam.inspect_optimizer`."""

from importlib import import_module
from typing import Any

from tiebeam.api.versions import versions
from tiebeam.backends import is_model, resolve
from tiebeam.core.findings import in_order
from tiebeam.core.findings.optimizers import facts_notes, optimizer_findings
from tiebeam.core.report import Report
from tiebeam.core.training.optimizers import rule
from tiebeam.errors import InputError


def inspect_optimizer(
    optimizer: Any,
    model: Any,
    report: Report,
    scheduler: Any = None,
    *,
    params: Any = None,
    family: str | None = None,
) -> Report:
    """See what an optimizer does with a model's tables, and where a schedule leads it.

    Which parameter is a table, and at which ratio it should be trained, the report says. Groups are read; a copy of
    the schedule is run on a stand-in. Optimizer, schedule and model stay as they are.

    Args:
        optimizer: A `torch.optim.Optimizer`, or a list of those that share the model; wrappers are opened. Of JAX
            models the optax transformation, which is tried out on tiny arrays: closures cannot be read.
        model: What `report` is of.
        report: Of `tiebeam.inspect`.
        scheduler: Of that optimizer, or a list; followed to its end where it says one. In optax a schedule is a part of
            the transformation.
        params: The tree that the transformation trains, where the model does not hold it.
        family: What the optimizer counts as where its class does not say; see `tiebeam.torch.param_groups`.

    Returns:
        A report with the tables it was given and the findings on the optimizer. Their fixes run with `optimizer`,
        `scheduler`, `model`, `report` and `tiebeam` in scope.

    Raises:
        BackendError: The framework has no optimizers that could be read.
        InputError: The report is of another model, the scheduler of another optimizer, or the arguments are swapped.
        RangeError: No rule holds for `family`.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model, ids = MiniGPT(MiniGPTConfig.from_scheme("D", vocab=99, width=64)), torch.zeros(1, 8).long()
        >>> report = tiebeam.inspect(model, ids)
        >>> seen = tiebeam.inspect_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), model, report)
        >>> [(f.code, f.where) for f in seen.findings]
        [('table-rate', 'embed.weight')]
    """
    _check_order(optimizer, model, report)
    backend = resolve(model, params)
    home = f"tiebeam.backends.{backend.framework}.optimizers.holding"
    counts_as = None if family is None else rule(family).name
    more = {} if params is None else {"params": params}
    facts, notes = import_module(home).facts_of(optimizer, model, report, scheduler, counts_as, **more)
    return Report(
        model=backend.name,
        framework=backend.framework,
        tables=report.tables,
        findings=in_order(list(optimizer_findings(facts))),
        parameters=backend.parameters(),
        meta=report.meta,
        notes=(*facts_notes(facts), *notes),
        versions=versions(backend.framework),
    )


def _check_order(optimizer: Any, model: Any, report: Any) -> None:
    """Refuse arguments in another order than theirs: a model or a report where neither belongs, or no report."""
    swapped = (
        (is_model(optimizer) and not is_model(model)) or isinstance(optimizer, Report) or isinstance(model, Report)
    )
    if swapped or not isinstance(report, Report):
        raise InputError(
            "the arguments are swapped: inspect_optimizer takes the optimizer, the model and its report"
            if swapped
            else "a report on the model is needed: it says which parameter is a table",
            got=", ".join(type(one).__name__ for one in (optimizer, model, report)),
            expected="an optimizer, its model, and what tiebeam.inspect(model, inputs) returned",
            hint="tiebeam.inspect_optimizer(optimizer, model, report)",
        )
