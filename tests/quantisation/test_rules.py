"""Rounding and its verdicts, without any framework."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiebeam.core.measuring.passes import Role
from tiebeam.core.measuring.quantise import Rows, bits_each, quantised
from tiebeam.core.measuring.sensitivity import Sensitivity, compare, measure_sensitivity
from tiebeam.errors import RangeError

ROWS = arrays(np.float32, (5, 12), elements=st.floats(-100, 100, width=32))


@given(rows=ROWS, bits=st.integers(2, 12), group=st.sampled_from([None, 1, 4, 5, 12, 99]))
def test_no_entry_moves_by_more_than_half_a_step_of_its_own_group(rows: Rows, bits: int, group: int | None) -> None:
    rounded = quantised(rows, bits, group)
    size = group or 12
    for left in range(0, 12, size):
        part, back = rows[:, left : left + size], rounded[:, left : left + size]
        step = np.abs(part).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
        assert (np.abs(back - part) <= step * 0.5 * (1 + 1e-5) + 1e-30).all()
        assert all(len(np.unique(row)) <= 2**bits - 1 for row in back)


@given(rows=ROWS, bits=st.integers(2, 12))
def test_what_is_rounded_already_stays_and_signs_do_not_matter(rows: Rows, bits: int) -> None:
    once = quantised(rows, bits)
    np.testing.assert_allclose(quantised(once, bits), once, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(quantised(-rows, bits), -once)


def test_rows_of_zeros_stay_and_large_tables_are_rounded_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
    rows[3] = 0
    whole = quantised(rows, 4, 4)
    assert not whole[3].any()
    monkeypatch.setattr("tiebeam.core.measuring.quantise.CHUNK", 16)
    np.testing.assert_array_equal(quantised(rows, 4, 4), whole)


def test_a_scale_costs_its_share() -> None:
    assert (bits_each(8, 64), bits_each(4, 4096, 32), bits_each(4, 16, 32)) == (8.25, 4.5, 5.0)


@pytest.mark.parametrize(("bits", "group"), [(1, None), (17, None), (8, 0)])
def test_bits_and_groups_out_of_range_are_refused(bits: int, group: int | None) -> None:
    with pytest.raises(RangeError):
        quantised(np.ones((2, 2), np.float32), bits, group)


def test_divergence_is_that_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((7, 11)).astype(np.float32) for _ in range(2))
    p, q = (np.exp(z.astype(float)) / np.exp(z.astype(float)).sum(1, keepdims=True) for z in (a, b))
    error, kl, top1 = compare(a, b)
    assert kl == pytest.approx((p * np.log(p / q)).sum(1).mean())
    off = b.astype(float) - a
    assert error == pytest.approx((off - off.mean(1, keepdims=True)).std())
    assert top1 == (a.argmax(1) == b.argmax(1)).mean()
    monkeypatch.setattr("tiebeam.core.measuring.sensitivity.CHUNK", 22)
    assert compare(a, b) == pytest.approx((error, kl, top1))


class Model:
    """Logits are the rows read, weighted: each role suffers as it is told to."""

    names: dict[Role, str] = {"lookup": "t", "readout": "t"}  # noqa: RUF012 - of the protocol
    dtype = "float32"

    def __init__(self, lookup: float, readout: float, *, tied: bool = True) -> None:
        self.weights: dict[Role, float] = {"lookup": lookup, "readout": readout}
        self.tied = tied
        self.held = (0, 2)
        self.table = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)

    def rows(self, role: Role) -> Rows:
        return self.table

    def logits(self, instead: Mapping[Role, Rows]) -> npt.NDArray[np.float32]:
        total = np.zeros((32, 6), np.float32)
        for role, weight in self.weights.items():
            total += weight * (instead.get(role, self.table) - self.table).T
        return self.table.T + total


def judged(lookup: float, readout: float, *, tied: bool = True) -> Sensitivity:
    return measure_sensitivity("m", Model(lookup, readout, tied=tied), tolerance=1e-3)


def test_one_table_serves_roles_that_suffer_alike() -> None:
    found = judged(0.2, 0.2)
    assert found.advice == "shared"
    assert found.bits == {"lookup": 4, "readout": 4}
    assert [(e.role, e.bits, e.group) for e in found.effects[:4]] == [
        ("lookup", 8, None), ("readout", 8, None), ("both", 8, None), ("lookup", 6, None),
    ]  # fmt: skip
    assert len(found.effects) == 18


def test_a_readout_that_bears_less_asks_for_its_own_bits_of_one_table() -> None:
    found = judged(0.2, 3.0)
    assert found.bits["lookup"] == 4
    assert (found.bits["readout"] or 99) > 4
    assert found.advice == "shared"
    assert "two tables would be larger" in found.reason


def test_a_readout_that_bears_more_may_have_a_copy_for_speed() -> None:
    found = judged(3.0, 0.2)
    assert found.advice == "mixed"
    assert "second copy" in found.reason


def test_a_role_that_bears_nothing_is_kept_or_untied() -> None:
    found = judged(0.2, 500.0)
    assert (found.bits["readout"], found.advice) == (None, "untied")
    assert "keep it, or untie" in found.reason
    assert judged(500.0, 500.0).advice == "as it is"


def test_two_tables_are_judged_each_by_itself() -> None:
    assert judged(0.2, 3.0, tied=False).advice == "untied"


def test_positions_that_do_not_count_are_left_out() -> None:
    mask = np.arange(32) < 4
    found = measure_sensitivity("m", Model(1, 1), mask=mask)
    assert found.positions == 4


@pytest.mark.parametrize(("bits", "tolerance"), [((), 0.1), ((8,), 0.0), ((8,), float("nan"))])
def test_nothing_to_try_is_refused(bits: tuple[int, ...], tolerance: float) -> None:
    with pytest.raises(RangeError, match="what to try"):
        measure_sensitivity("m", Model(1, 1), bits=bits, tolerance=tolerance)


def test_what_was_not_measured_is_refused_and_what_was_is_shown() -> None:
    found = measure_sensitivity("m", Model(1, 1), bits=(8,), group=None)
    with pytest.raises(RangeError, match="was measured"):
        found.effect("both", 4)
    assert found.to_dict()["effects"][2]["role"] == "both"
    assert "both        8       row" in str(found)
    assert f"{found.effect('both', 8).kl:.2e}" in str(found)


def test_a_number_of_bits_alone_is_refused_with_what_would_do() -> None:
    with pytest.raises(RangeError, match=r"got: bits=8\n(?s:.*)Hint: bits=\(8,\)"):
        measure_sensitivity("m", Model(1, 1), bits=8)
