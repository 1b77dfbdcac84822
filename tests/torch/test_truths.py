"""The truths that the other tests lean on, held against plain PyTorch: wrong ones are found here."""

import warnings
from typing import Any

import pytest
from tests.torch.expect import all_of, both_gradients_arrive, parameters_of
from tests.torch.models.kit import Builder, load

from tiebeam.testing import probe_table

EVERY = all_of(*load())
# A cast to float32 in the model leaves differences no digits; the others have, rightly, another slope.
NO_SLOPE = {
    *"OneHotEinsum OneHotByScatter BagOfWordsCounts LogitsInFloat Chain HiddenCastAndScaled".split(),
    *"AlphaOfBaddbmm CapInFloatThenSliced".split(),
    "HalfOfTheStreamDetached",  # one of two branches carries no gradient, and is still moved
    "EmbeddingModule",  # the padding row gets no gradient from the lookup
}
SLOPES = [p for p in all_of("states", "lookups", "readouts", "factors", "softcaps") if p.id not in NO_SLOPE]
SAME_STORAGE = ("tied", "aliased", "cut")


@pytest.fixture(autouse=True)
def reentrant_checkpoints_may_warn() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        yield


def close(got: float | None, want: float | None) -> bool:
    return (got is None and want is None) or got == pytest.approx(want, rel=2e-3)


@pytest.mark.parametrize("build", EVERY)
def test_truths_hold_numerically(build: Builder) -> None:
    case = build()
    case.model.eval()
    for truth in case.truths:
        if not truth.numeric or not truth.names or truth.state == "none":
            continue
        first, *others = parameters_of(case, truth)
        got = probe_table(case.model, case.inputs, first, *others[:1], vocab_axis=truth.vocab_axis)
        assert got.tied == (truth.state in SAME_STORAGE)
        assert got.soft_cap is None if truth.soft_cap is None else close(got.soft_cap, truth.soft_cap)
        assert got.readout_bias == truth.readout_bias
        if got.lookups:
            assert close(got.lookup_factor, truth.lookup_factor), got
            assert got.norm_after_lookup == truth.norm_after_lookup
        if got.readouts:
            assert close(got.readout_factor, truth.readout_factor), got
        if truth.counts is not None:
            assert (bool(got.lookups), bool(got.readouts)) == tuple(bool(n) for n in truth.counts[:2])


@pytest.mark.parametrize("build", SLOPES)
def test_gradients_reach_a_tied_table_from_both_roles_and_a_cut_one_not(build: Builder) -> None:
    case = build()
    for truth in case.truths:
        if truth.numeric and truth.smooth and truth.state in SAME_STORAGE:
            assert both_gradients_arrive(case, truth) == (truth.state != "cut")
