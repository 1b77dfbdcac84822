"""`tiebeam.initialize`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from tiebeam.api.drawing import done, drawn, leaf_of
from tiebeam.api.inspection import report_of, silent, untied_on_purpose
from tiebeam.api.look import Look, look
from tiebeam.backends import entry_of
from tiebeam.backends.protocol import Functional, Operable
from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.findings import in_order
from tiebeam.core.initialising.init import (
    Mode,
    TablePlan,
    could_be_a_classifier,
    could_be_a_layer,
    is_an_adapter,
    plan_init,
)
from tiebeam.core.initialising.ranges import check_fits
from tiebeam.core.report import Report
from tiebeam.core.seeds import checked_seed
from tiebeam.errors import InputError, RangeError, TieError


def initialize(
    model: Any, inputs: Any = None, *, mode: Mode = "auto", only: Literal["tables"] = "tables", seed: int = 0
) -> Report:
    """Draw the vocabulary tables anew, at the std with which logits start at unit variance.

    A readout wants `1 / (|readout_factor| * hidden_rms * sqrt(width))`, a table that is only looked up
    `1 / |lookup_factor|`. Rows that are all zero (padding) stay zero, biases over the vocabulary become
    zero, everything else is untouched. Calling it twice equals calling it once.

    Args:
        model, inputs: As for `inspect`.
        mode: "analytic" uses the structure alone, "empirical" measures logits on `inputs`, "auto" is analytic
            where the factors are known and a normalisation stands before the readout, else empirical; empirical also
            where the logits turn out not to be as the structure says (two readouts that are added up, for one).
        only: "tables".
        seed: An integer of 0 or above. One seed gives the same weights in every framework, on any number
            of threads.

    Returns:
        The report of the model as it is afterwards, with `init`: what was done to each table, and the
        predicted and measured std of the logits. On meta tensors: the plan, nothing written.

    Raises:
        RangeError: A bad mode, seed or `only`; "analytic" where the structure does not tell the std; or a std that
            the table's dtype cannot hold.
        InputError: The model refuses the inputs, or a table cannot be written (integers, quantised).
        TieError: Lookup and readout are copies of one another; `tie` them first. Where the config says that they are
            two tables, two are drawn.

    Whatever is raised, an interrupt too, the model is as it was. Rounds of measuring that do not settle leave the std
    whose logits came nearest to a std of 1, and the finding `not-settled`.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> class Tiny(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = nn.Embedding(300, 64)
        ...         self.norm = nn.LayerNorm(64)
        ...     def forward(self, ids):
        ...         return self.norm(self.embed(ids)) @ self.embed.weight.T
        >>> model = Tiny()
        >>> done = tiebeam.initialize(model, torch.arange(8)[None]).init[0]
        >>> done.mode, done.std, round(model.embed.weight.std().item(), 3)
        ('analytic', 0.125, 0.125)
    """
    seed = _check(only, seed)
    if entry_of(model, ()).functional:
        raise InputError(
            f"{type(model).__name__} cannot be written in place: JAX arrays do not change",
            got="initialize",
            expected="initialize_params, which returns a new tree beside the report",
            hint="params, report = tiebeam.initialize_params(model, inputs, params); nnx and Equinox modules come "
            "without params, and come back whole",
        )
    return _initialized(look(model, inputs), mode, seed)


def initialize_params(
    model: Any,
    inputs: Any = None,
    params: Any = None,
    *,
    mode: Mode = "auto",
    only: Literal["tables"] = "tables",
    seed: int = 0,
) -> tuple[Any, Report]:
    """Like `initialize`, for models whose arrays do not change: returns a new tree.

    Args:
        model: A JAX model, as for `inspect`.
        inputs: As for `inspect`.
        params: What a linen module or a function is applied to; none for an nnx or Equinox module. Only read.
        mode, only, seed: As for `initialize`. One seed gives the tables that it gives in every framework.

    Returns:
        The params with new tables, of the same structure, dtypes and shardings (for an nnx or Equinox module: a
        new module), and the report of the model with them. Of abstract params: themselves, and the plan.

    Raises:
        RangeError, InputError: As `initialize`; InputError also for a model that is written in place.

    Example:
        >>> import jax, jax.numpy as jnp, tiebeam
        >>> def apply(params, ids):
        ...     h = params["table"][ids]
        ...     h = h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6)
        ...     return h @ params["table"].T
        >>> params = {"table": jax.random.normal(jax.random.key(0), (300, 64))}
        >>> params, report = tiebeam.initialize_params(apply, jnp.arange(8)[None], params)
        >>> report.init[0].mode, report.init[0].std, round(float(params["table"].std()), 3)
        ('analytic', 0.125, 0.125)
    """
    seed = _check(only, seed)
    if not entry_of(model, params).functional:
        raise InputError(
            f"{type(model).__name__} is written in place",
            got="initialize_params",
            expected="initialize",
            hint="report = tiebeam.initialize(model, inputs)",
        )
    seen = look(model, inputs, params=params)
    report = _initialized(seen, mode, seed)
    if not isinstance(seen.model, Functional):
        raise InputError(f"the backend of {seen.model.name} makes no new trees", hint="use tiebeam.initialize")
    return seen.model.rebuilt(), report


def _check(only: str, seed: int) -> int:
    """The seed, where both are right."""
    if only != "tables":
        raise RangeError(
            "initialize writes vocabulary tables alone",
            got=f"only={only!r}",
            expected="only='tables'",
            hint="leave it out: the rest of the model keeps what its own code drew",
        )
    return checked_seed(seed)


def _initialized(seen: Look, mode: Mode, seed: int) -> Report:
    """Plan, write, measure."""
    meta = bool(seen.traced.graph.meta)
    if silent(seen):
        raise InputError(
            f"{seen.model.name} returned no float tensor on these inputs, so its readout cannot be seen",
            expected="logits or a loss, as tensors",
            hint="pass inputs with which it returns them",
        )
    unseen = _unseen(seen)
    plans = plan_init(seen.tables, mode, meta=meta, unseen=unseen)
    _check_no_copies(seen, plans)
    if meta:
        report = report_of(seen)
        return replace(
            report,
            findings=in_order([*report.findings, *_left_alone(seen, unseen)]),
            notes=(*report.notes, *([] if plans else _nothing_drawn(seen))),
            init=tuple(done(p, p.std, p.table, None, 0, written=False, seed=seed) for p in plans),
        )
    for plan in plans:
        check_fits(plan.table.name, plan.std, plan.table.dtype)
        seen.model.check_writable(seen.traced, leaf_of(seen, plan))
    report = drawn(seen, plans, seed) if plans else report_of(seen)
    return replace(
        report,
        findings=in_order([*report.findings, *_left_alone(seen, unseen)]),
        notes=(*report.notes, *(_left(seen) if plans else _nothing_drawn(seen))),
    )


def _check_no_copies(seen: Look, plans: Sequence[TablePlan]) -> None:
    """Raise where two tables of equal values, which were meant to be one, would come out as two unequal ones.

    Raises:
        TieError: So they would; a config that says that they are two lets them.
    """
    if untied_on_purpose(seen.declared):
        return
    for table in (p.table for p in plans):
        if table.state == "copy" and not table.constant:  # memory that nobody wrote is equal anywhere
            able = isinstance(seen.model, Operable)
            raise TieError(
                f"{table.name!r} and {table.partner!r} hold equal values in separate memory",
                got="a copy, which a draw would turn into two tables that have nothing in common",
                expected="one table, or two whose values differ",
                hint="tie them first: tiebeam.tie(model, inputs)"
                if able
                else "let both roles read one parameter first",
            )


def _nothing_drawn(seen: Look) -> list[str]:
    if not seen.tables:
        return ["nothing was drawn: no vocabulary table was seen in this pass"]
    names = ", ".join(t.name for t in seen.tables)
    return [f"nothing was drawn: initialize leaves {names} alone", *_left(seen)]


def _unseen(seen: Look) -> dict[str, str]:
    """By table name what could be a readout of it that was not recognised as one."""
    found: dict[str, str] = {}
    for use in seen.uses:
        if use.unseen:
            for table in seen.tables:
                if set(table.names).intersection(use.read.source.leaf.names) and not table.readouts:
                    found.setdefault(table.name, use.unseen)
    return found


def _left_alone(seen: Look, unseen: dict[str, str]) -> list[Finding]:
    return [
        Finding(
            "left-alone", "warning", name,
            f"it was not drawn: it is looked up, and {why}. If that is a readout, the std of a lookup would give "
            "logits of std sqrt(width)",
            hint="pass inputs with which the model returns its logits; or draw it yourself: 1 for a lookup alone, "
            "1/sqrt(width) where it is read out behind a normalisation",
        )
        for name, why in unseen.items()
    ]  # fmt: skip


def _left(seen: Look) -> list[str]:
    whys: dict[str, Callable[[Table], bool]] = {
        "it is square and only multiplied, so it could be a layer of the body": could_be_a_layer,
        "it has another number of outputs than any lookup has tokens, so it could be a classifier": partial(
            could_be_a_classifier, tables=seen.tables
        ),
        "it is an adapter, which adds nothing to another table's logits yet": partial(
            is_an_adapter, tables=seen.tables
        ),
    }
    return [f"{t.name} was left alone: {why}" for t in seen.tables for why, holds in whys.items() if holds(t)]
