"""What training did to a table: where it went, and which rows it has not reached."""

import numpy as np
import pytest
import torch
from tests.measure.models import VOCAB, Tied, batch, looked_up, next_token_loss, plain
from torch import Tensor, nn

import tiebeam


def test_a_step_of_descent_drifts_along_both_roles_as_their_norms_say() -> None:
    model, ids = Tied(plain), batch()
    before = model.table.detach().clone()
    first = tiebeam.measure(model, ids, grad=True)
    lookup, readout = (first.roles[r].grad for r in ("lookup", "readout"))
    with torch.no_grad():
        model.table.sub_(1e-4 * (lookup + readout))
    drift = tiebeam.measure(model, ids, since={"table": before}).tables[0].drift
    assert drift is not None
    whole = lookup + readout
    assert drift.moved == pytest.approx(1e-4 * float(whole.norm() / before.norm()), rel=1e-2)
    assert drift.readout == pytest.approx(float((whole * readout).sum() / whole.norm() / readout.norm()), abs=0.01)
    assert drift.lookup == pytest.approx(float((whole * lookup).sum() / whole.norm() / lookup.norm()), abs=0.01)
    assert drift.still_rows == 0


def test_a_table_moved_by_its_readout_alone_is_seen_to_drift_there() -> None:
    model, ids = Tied(plain), batch()
    before = model.table.detach().numpy().copy()
    with torch.no_grad():
        model.table.sub_(1e-3 * tiebeam.measure(model, ids, grad=True).roles["readout"].grad)
    found = tiebeam.measure(model, ids, since={"table": before})
    drift = found.tables[0].drift
    assert drift is not None
    assert drift.readout == pytest.approx(1.0, abs=1e-2)
    assert abs(drift.lookup or 0.0) < 0.3
    assert "drift of table" in str(found)


def test_a_table_that_did_not_move_has_no_direction() -> None:
    model = Tied(plain)
    drift = tiebeam.measure(model, batch(), since={"table": model.table.detach().clone()}).tables[0].drift
    assert drift is not None
    assert (drift.moved, drift.lookup, drift.readout, drift.still_rows) == (0.0, None, None, VOCAB)


def test_earlier_values_of_no_table_are_refused_and_those_of_a_whole_model_are_not() -> None:
    model, ids = Tied(plain), batch()
    with pytest.raises(tiebeam.InputError, match=r"(?s)got: tabel\n.*one of table\nHint: since={'table': ...}"):
        tiebeam.measure(model, ids, since={"tabel": model.table.detach().clone()})
    everything = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert len(everything) > 1
    assert tiebeam.measure(model, ids, since=everything).tables[0].drift is not None
    assert tiebeam.measure(model, ids, since={}).tables[0].drift is None


def test_an_earlier_table_of_another_shape_is_refused() -> None:
    with pytest.raises(tiebeam.InputError, match="another shape"):
        tiebeam.measure(Tied(plain), batch(), since={"table": np.zeros((3, 3))})


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_rows_that_got_no_gradient_so_far_are_counted_by_the_optimizers_state(make) -> None:
    model, ids = Tied(plain, split=True), batch()
    optimizer = make(model.parameters())
    assert tiebeam.measure(model, ids, optimizer=optimizer).tables[0].silent_rows is None
    next_token_loss(model(ids), ids).backward()
    optimizer.step()
    lookup, readout = tiebeam.measure(model, ids, optimizer=optimizer).tables
    assert lookup.silent_rows == VOCAB - looked_up(ids)
    assert readout.silent_rows == 0


def test_a_spectrum_tells_a_table_whose_rows_all_point_one_way() -> None:
    model = Tied(plain)
    even = tiebeam.measure(model, batch(), spectrum=True).tables[0].spectrum
    with torch.no_grad():
        model.table.copy_(torch.ones(VOCAB, 1) * torch.randn(1, 8))
    flat = tiebeam.measure(model, batch(), spectrum=True).tables[0].spectrum
    assert even is not None
    assert flat is not None
    assert even.effective_rank > 7
    assert flat.effective_rank == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(flat.values[0], np.linalg.norm(model.table.detach()), rtol=1e-5)


def test_the_two_modules_of_a_tie_share_one_gradient_and_one_update() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embed(ids)))

    model, ids = Two(), batch()
    roles = tiebeam.measure(model, ids, grad=True).roles
    before = model.embed.weight.detach().clone()
    next_token_loss(model(ids), ids).backward()
    assert model.head.weight.grad is model.embed.weight.grad
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    both = roles["lookup"].grad + roles["readout"].grad
    torch.testing.assert_close(model.head.weight.detach(), before - 0.5 * both)
