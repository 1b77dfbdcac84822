"""What a report must say of a case, and how a truth is held against plain PyTorch."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.torch.models.kit import Case, Truth, load

import tiebeam
from tiebeam.testing._replay import tensors_in


def all_of(*themes: str) -> list[Any]:
    """Every builder of these themes, as pytest parameters with readable ids."""
    cases = load()
    return [pytest.param(build, id=name) for theme in themes for name, build in cases[theme].items()]


def table_of(report: tiebeam.Report, truth: Truth) -> tiebeam.Table:
    """The one table that carries these names."""
    found = [t for t in report.tables if set(truth.names) & set(t.names)]
    seen = [(t.names, t.state) for t in report.tables]
    assert len(found) == 1, f"{len(found)} tables carry {truth.names}; the report has {seen}"
    return found[0]


def check_roles(table: tiebeam.Table, truth: Truth) -> None:
    assert (table.vocab, table.width) == (truth.vocab, truth.width)
    assert table.state == truth.state, (table.state, table.notes)
    assert table.tied == (truth.state in ("tied", "aliased"))
    missing = set(truth.names) - set(table.names)
    assert not missing, f"{table.names} lacks {missing}"
    if truth.counts is not None:
        looks, reads, first = truth.counts
        got = (len(table.lookups), len(table.readouts))
        assert got == (looks, reads), [r.where for r in (*table.lookups, *table.readouts)]
        if reads and table.readouts[0].count != first:
            pytest.fail(f"{table.readouts[0].count} executions of the readout, expected {first}")
    assert table.readout_bias == truth.readout_bias
    if table.lookups:
        assert table.norm_after_lookup == truth.norm_after_lookup


def check_factors(table: tiebeam.Table, truth: Truth) -> None:
    for field, records in (("lookup_factor", table.lookups), ("readout_factor", table.readouts)):
        got, want = getattr(table, field), getattr(truth, field)
        notes = [*table.notes, *(n for r in records for n in r.notes)]
        if want is None:
            assert got is None, f"{field}={got} where no constant is"
            assert table.notes or not records, f"{field} is None without a reason"
        else:
            assert got == pytest.approx(want, rel=1e-6), f"{field}: {notes}"
    cap = None if truth.soft_cap is None else pytest.approx(truth.soft_cap, rel=1e-6)
    assert table.soft_cap == cap


def check(case: Case) -> tiebeam.Report:
    """Inspect, and hold every table the truths speak of against them."""
    report = tiebeam.inspect(case.model, case.inputs)
    for truth in case.truths:
        table = table_of(report, truth)
        check_roles(table, truth)
        check_factors(table, truth)
        assert set(truth.findings) <= {f.code for f in report.findings}
    return report


# -- the truths themselves, without tiebeam --


def parameters_of(case: Case, truth: Truth) -> list[torch.Tensor]:
    named = {
        **dict(case.model.named_parameters(remove_duplicate=False)),
        **dict(case.model.named_buffers(remove_duplicate=False)),
    }
    return list({id(named[n]): named[n] for n in truth.names}.values())


def both_gradients_arrive(case: Case, truth: Truth) -> bool:
    """Whether autograd's slope along a random move of the table is the slope that differences show.

    Both roles are moved by the differences; autograd leaves out a role whose gradient is cut.
    """
    model = copy.deepcopy(case.model).double().eval()
    moved = Case(model, case.inputs, case.truths)
    tables = parameters_of(moved, truth)
    direction = torch.randn(tables[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))

    def loss() -> torch.Tensor:
        outs = [t.double() for t in floats(_call(moved))]
        return sum(t.mul(torch.linspace(-1, 1, t.numel(), dtype=torch.float64).view_as(t)).sum() for t in outs)

    for p in model.parameters():
        p.grad = None
    loss().backward()
    slope = sum(float((t.grad * direction).sum()) for t in tables if t.grad is not None)

    def at(step: float) -> float:
        with torch.no_grad():
            for storage in {t.untyped_storage().data_ptr(): t for t in tables}.values():
                storage.add_(step * direction)
            value = float(loss())
            for storage in {t.untyped_storage().data_ptr(): t for t in tables}.values():
                storage.sub_(step * direction)
        return value

    return math.isclose(slope, (at(1e-5) - at(-1e-5)) / 2e-5, rel_tol=1e-4, abs_tol=1e-7)


def _call(case: Case) -> Any:
    inputs = case.inputs
    return case.model(**inputs) if isinstance(inputs, dict) else case.model(*inputs)


def floats(answer: Any) -> Iterator[torch.Tensor]:
    """Float tensors of an answer, dataclasses and plain objects opened."""
    opened = vars(answer) if hasattr(answer, "__dict__") and not isinstance(answer, torch.Tensor | dict) else answer
    return (t for t in tensors_in(opened) if t.is_floating_point())
