"""States: what the tensors are, and what gradients reach."""

import pytest
import torch
from tests.torch.expect import all_of, check, table_of
from tests.torch.models.kit import Builder, load
from torch import nn

import tiebeam


@pytest.mark.parametrize("build", all_of("states"))
def test_a_state_is_what_the_tensors_and_gradients_say(build: Builder) -> None:
    case = build()
    report = check(case)
    for truth in case.truths:
        table = table_of(report, truth)
        if truth.state in ("copy", "drifted"):
            assert table.partner in truth.partner
            assert table.distance is not None
            assert (table.distance < 0.01) == (truth.state == "copy")


@pytest.mark.parametrize("build", all_of("states"))
def test_of_a_copy_the_own_token_s_logit_is_bounded_and_not_said_to_be_none(build: Builder) -> None:
    case = build()
    for table in tiebeam.inspect(case.model, case.inputs).tables:
        if table.state == "copy" and table.predicted.logit_std is not None:
            assert table.predicted.own_logit is None
            assert table.predicted.own_logit_range is not None


FINDING = {
    "aliased": ("aliased-storage", "error"),
    "cut": ("gradient-cut", "error"),
    "copy": ("copy-not-tie", "warning"),
    "drifted": ("drifted", "warning"),
    "untied": ("untied", "info"),
}


@pytest.mark.parametrize("build", all_of("states"))
def test_each_state_that_is_no_tie_is_a_finding_and_no_other_state_is(build: Builder) -> None:
    case = build()
    severities = {f.code: f.severity for f in tiebeam.inspect(case.model, case.inputs).findings}
    states = {t.state for t in case.truths}
    for state, (code, severity) in FINDING.items():
        assert severities.get(code) == (severity if state in states else None), code


def test_a_cut_says_which_role_is_cut() -> None:
    for name, lookup, readout in (
        ("DetachedReadout", True, False), ("DataReadout", True, False), ("LookupWithoutGrad", False, True),
        ("DetachedRows", False, True), ("DetachedHidden", False, True), ("UsedTwice", True, True),
    ):  # fmt: skip
        case = load()["states"][name]()
        table = table_of(tiebeam.inspect(case.model, case.inputs), case.truths[0])
        assert (table.lookups[0].gradient, table.readouts[0].gradient) == (lookup, readout), name


def test_gradient_facts_hold_though_the_caller_has_grad_mode_off() -> None:
    case = load()["states"]["DetachedReadout"]()
    tied = load()["states"]["UsedTwice"]()
    with torch.no_grad():
        assert tiebeam.inspect(case.model, case.inputs).tables[0].state == "cut"
        assert tiebeam.inspect(tied.model, tied.inputs).tables[0].state == "tied"
    with torch.inference_mode():
        assert tiebeam.inspect(tied.model, tied.inputs).tables[0].state == "tied"


def test_the_distance_of_a_drifted_pair_is_relative_and_frobenius() -> None:
    case = load()["states"]["DriftedFar"]()
    table = table_of(tiebeam.inspect(case.model, case.inputs), case.truths[0])
    assert table.distance == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize("detached", [False, True])
def test_a_conjugate_that_pytorch_writes_out_for_a_kernel_cuts_no_gradient(detached: bool) -> None:
    """The operation reads a copy that was made below autograd: its flag says False though the gradient flows."""

    class Bound(nn.Module):
        """Circular correlation with a key, as holographic memories bind."""

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.key = nn.Embedding(37, 8), nn.LayerNorm(8), nn.Parameter(torch.randn(8))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            x = torch.fft.rfft(x.detach() if detached else x).conj() * torch.fft.rfft(self.key)
            return self.norm(torch.fft.irfft(x, n=8)) @ self.embed.weight.T

    (table,) = tiebeam.inspect(Bound(), torch.arange(10).view(2, 5)).tables
    assert table.state == ("cut" if detached else "tied")
