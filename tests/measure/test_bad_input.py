"""What cannot be measured is said plainly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.measure.models import VOCAB, WIDTH, Tied, batch, next_token_loss, plain
from torch import Tensor, nn
from torch.nn import functional as F

import tiebeam


def test_a_frozen_table_gives_figures_but_no_gradients() -> None:
    model = Tied(plain)
    model.table.requires_grad_(False)
    found = tiebeam.measure(model, batch())
    assert found.own_rank is not None
    assert found.roles["readout"].grad_norm is None
    assert found.notes == ("'table' is frozen: it gets no gradient",)


def test_an_all_frozen_model_is_measured_too() -> None:
    found = tiebeam.measure(Tied(plain).requires_grad_(False), batch())
    assert found.initial_loss > 0
    assert found.roles["lookup"].grad_norm is None


def test_a_detached_role_sends_nothing() -> None:
    found = tiebeam.measure(Tied(lambda ids, a, b, body: body(F.embedding(ids, a)) @ b.detach().T), batch())
    assert found.tables[0].state == "cut"
    assert found.roles["readout"].grad_norm == 0.0
    assert found.roles["lookup"].grad_norm
    assert found.role_ratio is None
    assert any("no gradient comes back from the readout" in n for n in found.notes)


def test_a_loss_that_is_not_finite_is_refused_with_what_else_is_not() -> None:
    model = Tied(plain)
    with torch.no_grad():
        model.table[3] = float("nan")
    with pytest.raises(tiebeam.InputError, match=r"(?s)not finite.*'table' holds entries.*logits"):
        tiebeam.measure(model, batch())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (torch.zeros(0, 4).long(), "the batch is empty"),
        (torch.zeros(2, 1).long(), "none of which counts"),
        ((batch(), torch.full((2, 6), -100)), "none of which counts"),
        ((batch(), torch.zeros(2, 3).long()), "do not fit"),
        ({"ids": batch(), "labels": torch.zeros(2, 6)}, "do not fit"),
        (torch.full((1, 4), VOCAB), "does not run on these inputs"),
    ],
)
def test_a_batch_that_cannot_be_used_is_refused(given: object, word: str) -> None:
    with pytest.raises(tiebeam.InputError, match=word):
        tiebeam.measure(Tied(plain), given)


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(50, 8), nn.Embedding(4, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.tok(ids) + self.pos(torch.arange(ids.shape[1]))) @ self.tok.weight.T


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (torch.zeros(2, 6).long(), r"rows of at most 4 \(--tokens 4 of commands that have it\)"),
        (torch.full((1, 3), 50), "ids below 50$"),
    ],
    ids=["position", "id"],
)
@pytest.mark.parametrize("look", [tiebeam.measure, tiebeam.inspect], ids=["measure", "inspect"])
def test_an_index_outside_a_table_names_the_ids_and_the_rows(look: Any, given: Tensor, advice: str) -> None:
    with pytest.raises(
        tiebeam.InputError, match=r"(?s)below the rows of its table: tok 50, pos 4\n.*" + advice
    ) as raised:
        look(Placed(), given)
    said = str(raised.value)
    assert f"{given.shape[1]} ids in a row, the largest {int(given.max())}" in said
    assert ("inputs=" in said) is (look is tiebeam.inspect)


def test_a_list_of_ids_is_told_to_become_a_tensor() -> None:
    with pytest.raises(tiebeam.InputError, match=r"Hint: token ids are an array.*torch\.tensor\(\[\[1, 2, 3\]\]\)"):
        tiebeam.inspect(Placed(), [[1, 2, 3]])


@pytest.mark.parametrize("given", ["a loss", 3.0, torch.ones(2), torch.tensor(1)])
def test_a_loss_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(tiebeam.InputError, match="no loss"):
        tiebeam.measure(Tied(plain), batch(), loss=lambda out, ids: given)


@pytest.mark.parametrize("look", [tiebeam.measure, tiebeam.check_gradients])
def test_a_loss_that_cannot_be_called_is_refused(look: Callable[..., object]) -> None:
    with pytest.raises(tiebeam.InputError, match="got: 'mse'"):
        look(Tied(plain), batch(), loss="mse")


def test_the_kind_of_number_is_named_where_it_is_no_loss() -> None:
    with pytest.raises(tiebeam.InputError, match=r"torch\.int64"):
        tiebeam.measure(Tied(plain), batch(), loss=lambda out, ids: out.argmax(-1).sum())


def test_a_loss_without_a_gradient_is_said() -> None:
    found = tiebeam.measure(Tied(plain), batch(), loss=lambda out, ids: next_token_loss(out, ids).detach())
    assert "no gradient is attached to the loss" in found.notes
    assert found.roles["lookup"].grad_norm is None


def test_labels_of_a_tuple_or_a_dict_and_the_models_own_loss_are_one() -> None:
    class Own(Tied):
        def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:  # type: ignore[override]
            logits = super().forward(ids)
            return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    ids, labels = batch(), batch(seed=8)
    own = tiebeam.measure(Own(plain), (ids, labels))
    pair = tiebeam.measure(Tied(plain), (ids, labels))
    named = tiebeam.measure(Tied(plain), {"ids": ids.numpy(), "labels": labels.numpy()})
    assert (own.targets, pair.targets, named.targets) == ("the model's own loss", "labels", "labels")
    assert own.initial_loss == pytest.approx(pair.initial_loss)
    assert pair.role_ratio == named.role_ratio == pytest.approx(own.role_ratio)
    assert own.own_rank is None
    assert any("returns no logits" in n for n in own.notes)


def test_a_model_without_a_table_and_one_without_logits_say_so() -> None:
    with pytest.raises(tiebeam.InputError, match="no loss can be taken"):
        tiebeam.measure(nn.Linear(4, 4), torch.ones(2, 4))
    found = tiebeam.measure(nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out, x: out.sum())
    assert found.roles == {}
    assert found.log_vocab is None
    assert "no vocabulary table was seen" in found.notes


def test_meta_tensors_have_nothing_to_measure() -> None:
    with torch.device("meta"):
        model = Tied.__new__(Tied)
        nn.Module.__init__(model)
        model.table, model.second, model.body, model.read = (
            nn.Parameter(torch.empty(VOCAB, WIDTH)),
            None,
            nn.Tanh(),
            plain,
        )
    with pytest.raises(tiebeam.InputError, match="nothing to measure"):
        tiebeam.measure(model, torch.zeros(2, 6, dtype=torch.long, device="meta"))


def test_another_framework_is_refused_by_name() -> None:
    with pytest.raises(tiebeam.BackendError):
        tiebeam.measure("gpt2", np.zeros((1, 4), int))


def test_a_half_precision_table_is_measured_in_float32() -> None:
    found = tiebeam.measure(Tied(plain).bfloat16(), batch())
    want = tiebeam.measure(Tied(plain), batch())
    assert found.initial_loss == pytest.approx(want.initial_loss, rel=0.02)
    assert found.tables[0].unaccounted == 0.0
    assert found.role_ratio == pytest.approx(want.role_ratio, rel=0.05)


@pytest.mark.parametrize(
    "loss",
    [lambda output: output.mean(), lambda output, given: F.cross_entropy(given, output), lambda o, b: o.lost],
    ids=["one argument", "the other way round", "another output"],
)
def test_a_loss_that_does_not_run_is_said_to_be_how_it_is_called(loss: Any) -> None:
    with pytest.raises(
        tiebeam.InputError, match=r"(?s)loss= does not run: \w+Error: .*got: .*a Tensor.*Hint:"
    ) as caught:
        tiebeam.measure(Tied(plain), batch(), loss=loss)
    assert caught.value.__cause__ is not None


def test_a_loss_that_refuses_for_a_reason_of_its_own_keeps_it() -> None:
    def strict(output: Tensor, given: Tensor) -> Tensor:
        raise tiebeam.RangeError("too few tokens")

    with pytest.raises(tiebeam.RangeError, match="too few tokens"):
        tiebeam.measure(Tied(plain), batch(), loss=strict)


def test_ids_that_are_floats_are_to_be_made_integers() -> None:
    for call in (tiebeam.measure, tiebeam.inspect):
        with pytest.raises(tiebeam.InputError, match=r"of float32\n(?s:.*)Hint: token ids are integers: ids\.long"):
            call(Tied(plain), batch().float())
