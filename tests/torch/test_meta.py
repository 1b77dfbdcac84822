"""Models without values: meta and fake tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tiebeam


class Scaled(nn.Module):
    """A number in the program on the rows, another in a buffer on the logits."""

    def __init__(self, *, divide_by_mask: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.norm = nn.LayerNorm(64)
        self.register_buffer("scale", torch.tensor(0.5))
        self.divide_by_mask = divide_by_mask

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * torch.full((), 8.0, device=ids.device)
        if bool((ids >= 0).all()):  # what masking code asks before it builds a mask
            x = x + 0.0
        if self.divide_by_mask:
            x = x / x.abs().max().item()
        return self.norm(x) @ self.embed.weight.T * self.scale


def on_meta(**settings: Any) -> tuple[nn.Module, Tensor]:
    with torch.device("meta"):
        return Scaled(**settings), torch.zeros(1, 8, dtype=torch.long)


def test_a_number_made_on_meta_is_known_and_one_in_a_buffer_is_lost() -> None:
    report = tiebeam.inspect(*on_meta())
    (table,) = report.tables
    assert report.meta
    assert table.state == "tied"
    assert table.lookup_factor == 8.0
    assert table.readout_factor is None
    assert any("'scale' is lost on meta" in note for note in table.notes)


def test_a_table_without_values_has_no_std_and_bounds_instead_of_an_own_logit() -> None:
    model, ids = on_meta()
    model.scale = torch.tensor(0.5, device="cpu")
    (table,) = tiebeam.inspect(model, ids).tables
    assert (table.std, table.predicted.own_logit) == (None, None)
    assert (table.hidden_rms, table.target_std) == (1.0, 0.25)


def test_a_number_read_out_of_an_activation_goes_on_and_is_said() -> None:
    report = tiebeam.inspect(*on_meta(divide_by_mask=True))
    assert report.tables[0].lookup_factor is None
    assert any("_local_scalar_dense was answered without values" in note for note in report.notes)


def test_an_operation_that_needs_activations_is_named() -> None:
    class Selects(Scaled):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids.repeat(1, 200))
            return super().forward(ids) + x[x > 0].sum()

    with torch.device("meta"):
        model, ids = Selects(), torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(tiebeam.TraceError, match=r"aten::(nonzero|index)"):
        tiebeam.inspect(model, ids)


def test_on_meta_initialize_gives_the_plan_and_writes_nothing() -> None:
    model, ids = on_meta()
    model.scale = torch.tensor(0.5, device="cpu")
    (done,) = tiebeam.initialize(model, ids).init
    assert (done.std, done.written, done.mode) == (0.25, False, "analytic")


@pytest.mark.parametrize("inside", [True, False])
def test_a_fake_model_is_seen_within_its_mode_and_without(inside: bool) -> None:
    mode = FakeTensorMode()
    with mode:
        model = Scaled()
        fake = torch.zeros(1, 8, dtype=torch.long)
        report = tiebeam.inspect(model, fake) if inside else None
    report = report or tiebeam.inspect(model, torch.zeros(1, 8, dtype=torch.long))
    (table,) = report.tables
    assert (table.state, table.lookup_factor, table.std) == ("tied", 8.0, None)


class FromALeaf(Scaled):
    """A factor that lives in a buffer, and leaves it as a Python number."""

    def __init__(self, read: Callable[[Tensor], Any], kept: Any = 8.0) -> None:
        super().__init__()
        self.register_buffer("kept", torch.tensor(kept))
        self.read = read

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embed(ids) * self.read(self.kept)) @ self.embed.weight.T


@pytest.mark.parametrize(
    ("kept", "read"),
    [
        pytest.param(8.0, torch.Tensor.item, id="item"),
        pytest.param(8.0, float, id="float"),
        pytest.param(8.0, lambda t: t.item() and t * 2, id="the tensor after its item"),
        pytest.param(8.0, lambda t: int(t.item()), id="int, which takes no NaN"),
        pytest.param(8.0, lambda t: 4.0 if t > 2 else 2.0, id="a comparison"),
        pytest.param(8, torch.Tensor.item, id="an integer"),
        pytest.param(8, lambda t: int(t) ** 0.5, id="the root of an integer"),
        pytest.param(8, lambda t: t.item() * 0 + t, id="the integer tensor after its item"),
        pytest.param(8, lambda t: 4.0 if t > 2 else 2.0, id="a comparison of an integer"),
        pytest.param(True, lambda t: 4.0 if t else 2.0, id="a switch"),
    ],
)
def test_a_number_read_out_of_a_buffer_without_values_is_lost(kept: Any, read: Callable[[Tensor], Any]) -> None:
    with torch.device("meta"):
        model, ids = FromALeaf(read, kept), torch.zeros(1, 8, dtype=torch.long)
    report = tiebeam.inspect(model, ids)
    (table,) = report.tables
    assert table.lookup_factor is None
    assert any("lookup_factor is not known" in note for note in table.notes)
    assert "_local_scalar_dense was answered without values" in report.notes or "is_nonzero" in str(report.notes)


def test_a_readout_factor_without_its_value_is_no_dead_readout() -> None:
    class Learned(FromALeaf):
        def forward(self, ids: Tensor) -> Tensor:
            return self.norm(self.embed(ids)) @ self.embed.weight.T * self.read(self.kept)

    with torch.device("meta"):
        report = tiebeam.inspect(Learned(float), torch.zeros(1, 8, dtype=torch.long))
    assert report.tables[0].readout_factor is None
    assert not [f for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize("read", [lambda ids: float(ids.max()), lambda ids: int(ids[0, 0])], ids=["largest", "first"])
def test_a_number_read_out_of_ids_without_values_is_none(read: Callable[[Tensor], Any]) -> None:
    class FromIds(Scaled):
        def forward(self, ids: Tensor) -> Tensor:
            return self.norm(self.embed(ids) * read(ids)) @ self.embed.weight.T

    with torch.device("meta"):
        (table,) = tiebeam.inspect(FromIds(), torch.zeros(1, 8, dtype=torch.long)).tables
    assert table.lookup_factor is None
    assert "comes from the inputs" in str(table.notes)
