"""What goes wrong in a pass or while a table is written: said in one line, and the model is as it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.test_bad_input import assert_untouched, snapshot
from torch import Tensor, nn

import tiebeam

IDS = torch.arange(24).view(2, 12)


class Tied(nn.Module):
    def __init__(self, by: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64, dtype=dtype)
        self.norm = nn.LayerNorm(64)
        self.body = nn.Linear(64, 64)
        self.by = by

    def forward(self, ids: Tensor) -> Tensor:
        return self.by * self.out(self.norm(self.body(self.rows(ids))))

    def rows(self, ids: Tensor) -> Tensor:
        return self.embed(ids).float()

    def out(self, h: Tensor) -> Tensor:
        return h @ self.embed.weight.float().T


class Stops(Tied):
    """Fails in a later pass."""

    def __init__(self, error: BaseException, after: int, *, bias: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(64, 300, bias=bias)
        self.head.weight = self.embed.weight
        self.error, self.left = error, [True] * after  # what an attribute is would be put back after each pass

    def forward(self, ids: Tensor) -> Tensor:
        if not self.left:
            raise self.error
        self.left.pop()
        return super().forward(ids)

    def out(self, h: Tensor) -> Tensor:
        return self.head(h)


@pytest.mark.parametrize("mode", ["analytic", "empirical"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_an_interrupt_while_measuring_puts_tables_and_biases_back(mode: Any, error: BaseException) -> None:
    model = Stops(error, after=1)
    before = snapshot(model)
    with pytest.raises(type(error)):
        tiebeam.initialize(model, IDS, mode=mode)
    assert_untouched(before, model)


@pytest.mark.parametrize("by", [1e-6, 1e9], ids=["overflow", "underflow"])
def test_a_std_that_the_dtype_cannot_hold_is_refused_before_anything_is_written(by: float) -> None:
    model = Tied(by, torch.float16)
    before = snapshot(model)
    with pytest.raises(tiebeam.TiebeamError, match=r"'embed.weight' wants does not fit(.|\n)*float16"):
        tiebeam.initialize(model, IDS)
    assert_untouched(before, model)
    assert tiebeam.initialize(Tied(by), IDS).init[0].settled  # float32 holds it


class Diverges(Tied):
    """The hidden state goes with the inverse cube of the table: each round is further out."""

    def rows(self, ids: Tensor) -> Tensor:
        rows = self.embed(ids)
        return rows / (1e-3 + rows.norm() ** 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rows(ids))


def test_rounds_that_diverge_leave_the_best_std_they_met() -> None:
    model = Diverges()
    report = tiebeam.initialize(model, IDS)
    (done,) = report.init
    assert not done.settled
    assert [f.code for f in report.findings if f.code == "not-settled"] == ["not-settled"]
    assert done.std < 1e3
    with torch.no_grad():
        assert done.measured_logit_std == pytest.approx(model(IDS).std().item(), rel=0.01)
        assert model.embed.weight.std().item() == pytest.approx(done.std, rel=0.05)
    first = copy.deepcopy(model)
    nn.init.normal_(first.embed.weight, std=1 / 8)  # where the rounds began
    with torch.no_grad():
        assert abs(model(IDS).std().log()) <= abs(first(IDS).std().log()) + 0.1


@pytest.mark.parametrize("seed", [2**63, 2**64, 2**70])
def test_any_natural_number_is_a_seed(seed: int) -> None:
    one, other = Tied(), Tied()
    assert tiebeam.initialize(one, IDS, seed=seed).init[0].settled
    tiebeam.initialize(other, IDS, seed=seed)
    assert torch.equal(one.embed.weight, other.embed.weight)


class Sparse(Tied):
    """A body in compressed rows, which have no storage to know them by, and are written."""

    def __init__(self, layout: Callable[[Tensor], Tensor], *, fails: bool = False) -> None:
        super().__init__()
        self.body.weight = nn.Parameter(layout(self.body.weight.data), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))
        self.fails = fails

    def rows(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.body.weight.data.mul_(2)
        self.body.weight.mul_(2)
        if self.fails:
            raise ValueError("no")
        return super().rows(ids)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", [Tensor.to_sparse_csr, Tensor.to_sparse], ids=["compressed", "coordinates"])
@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
def test_sparse_weights_in_the_body_are_no_obstacle(layout: Callable[[Tensor], Tensor], fails: bool) -> None:
    model = Sparse(layout, fails=fails)
    before = {name: t.to_dense().clone() for name, t in model.state_dict().items()}
    if fails:
        with pytest.raises(tiebeam.InputError, match="ValueError: no"):
            tiebeam.inspect(model, IDS)
    else:
        assert tiebeam.inspect(model, IDS).tables[0].state == "tied"
    for name, t in model.state_dict().items():
        assert torch.equal(t.to_dense(), before[name]), name


def test_a_model_with_parameters_that_have_no_shape_yet_is_refused_and_stays_so() -> None:
    model = Tied()
    model.body = nn.LazyLinear(64)
    with pytest.raises(tiebeam.InputError, match=r"'body.weight' has no shape yet(.|\n)*call the model"):
        tiebeam.inspect(model, IDS)
    assert isinstance(model.body, nn.LazyLinear)
    model(IDS)
    assert tiebeam.inspect(model, IDS).tables[0].state == "tied"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_jagged_tensors_are_followed() -> None:
    class Jagged(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            rows = torch.nested.nested_tensor_from_jagged(self.embed(ids), torch.tensor([0, 5, 12]))
            return self.out(self.norm(rows.values()))

    assert tiebeam.inspect(Jagged(), torch.arange(12)).tables[0].state == "tied"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_jagged_tensors_are_taken_apart_again() -> None:
    class Jagged(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            rows = torch.nested.as_nested_tensor(list(self.embed(ids) * 2.0), layout=torch.jagged) * 3.0
            return self.out(self.norm(torch.stack(rows.unbind())))

    assert tiebeam.inspect(Jagged(), IDS).tables[0].state == "tied"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own
def test_tensors_without_memory_are_not_measured() -> None:
    """Forward-mode differentiation makes zeros that have none: reading them ends the process."""

    class Directional(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            x = torch.func.jvp(lambda t: t * 2.0, (x,), (torch.ones_like(x),))[0]
            return self.out(self.norm(x))

    assert tiebeam.inspect(Directional(), IDS).tables[0].lookup_factor == 2.0


def test_a_module_may_hold_the_model_that_it_is_part_of() -> None:
    model = Tied()
    model.norm.whole = model
    report = tiebeam.inspect(model, IDS)
    assert report.tables[0].state == "tied"
    assert not any("whole" in name for name in report.tables[0].names)
