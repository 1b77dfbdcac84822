"""What tying and untying do to a small model."""

import dataclasses

import pytest
import torch
from tests.torch.operations.models import IDS, LM, everything, gradient, same
from torch import nn

import tiebeam


def test_a_tie_is_one_object_and_the_lookups_values() -> None:
    model = LM(tied=False)
    table = model.embed.weight
    values = table.detach().clone()
    change = tiebeam.tie(model, IDS, on_conflict="embedding")
    assert model.head.weight is model.embed.weight is table
    assert torch.equal(table, values)
    assert change.tables == (("embed.weight", "head.weight"),)
    assert change.report is not None
    assert change.report.tables[0].state == "tied"


@pytest.mark.parametrize("how", ["embedding", "readout", "mean"])
def test_whose_values_count_is_said(how: str) -> None:
    model = LM(tied=False)
    ends = {"embedding": model.embed.weight.detach().clone(), "readout": model.head.weight.detach().clone()}
    ends["mean"] = (ends["embedding"] + ends["readout"]) / 2
    tiebeam.tie(model, IDS, on_conflict=how)  # type: ignore[arg-type]
    assert torch.allclose(model.embed.weight, ends[how])


def test_two_parameters_on_one_storage_become_one() -> None:
    model = LM(tied=False)
    model.head.weight = nn.Parameter(model.embed.weight.data)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tiebeam.tie(model, IDS, optimizer=optimizer)
    assert model.head.weight is model.embed.weight
    assert len(optimizer.param_groups[0]["params"]) == 3


def test_what_is_as_asked_already_is_left() -> None:
    model = LM()
    assert tiebeam.tie(model, IDS).tables == ()
    tiebeam.untie(model, IDS)
    assert tiebeam.untie(model, IDS).tables == ()
    assert tiebeam.resize(model, 50, IDS).tables == ()
    assert tiebeam.retie(LM(), [("embed.weight", "head.weight")]).tables == ()


def test_an_untied_readout_holds_what_the_table_held() -> None:
    model = LM()
    vars(model.embed.weight)["marked"] = "no decay"
    logits = model(IDS)
    change = tiebeam.untie(model, IDS)
    assert change.tables == (("embed.weight",), ("head.weight",))
    assert torch.equal(model(IDS), logits)
    assert vars(model.head.weight)["marked"] == "no decay"
    assert change.report is not None
    assert {t.state for t in change.report.tables} == {"copy"}


def test_a_frozen_table_stays_frozen() -> None:
    model = LM()
    model.embed.weight.requires_grad_(False)
    tiebeam.untie(model, IDS)
    tiebeam.resize(model, 60, IDS)
    assert not model.head.weight.requires_grad
    assert not model.embed.weight.requires_grad


def test_a_lookups_sparse_gradient_is_added_to_the_readouts_dense_one() -> None:
    model = LM(tied=False)
    model.embed = nn.Embedding(50, 16, sparse=True)
    model.head.weight.data.copy_(model.embed.weight.data)
    model(IDS).sum().backward()
    right = gradient(model.head.weight) + gradient(model.embed.weight)
    tiebeam.tie(model, IDS)
    assert torch.equal(gradient(model.embed.weight), right)


def test_two_parameters_on_one_storage_are_untied_in_their_memory() -> None:
    model = LM(tied=False)
    model.head.weight = nn.Parameter(model.embed.weight.data)
    head = model.head.weight
    tiebeam.untie(model, IDS)
    assert model.head.weight is head
    assert head.untyped_storage().data_ptr() != model.embed.weight.untyped_storage().data_ptr()
    assert torch.equal(head, model.embed.weight)


def test_a_parameter_of_a_class_of_its_own_stays_one_and_its_hooks_are_spoken_of() -> None:
    class Own(nn.Parameter):
        pass

    model = LM()
    model.embed.weight = model.head.weight = Own(torch.randn(50, 16))
    model.embed.weight.register_hook(lambda g: g)
    assert tiebeam.untie(model, IDS).notes == ("hooks on 'embed.weight' stay with the lookup",)
    assert type(model.head.weight) is Own


def test_a_model_that_holds_its_parent_is_changed_too() -> None:
    model = LM()
    model.head.parent = model
    tiebeam.untie(model, IDS)
    tiebeam.tie(model, IDS)
    assert tiebeam.ties(model) == (("embed.weight", "head.weight"),)


def test_what_is_made_in_inference_mode_can_be_trained_afterwards() -> None:
    model = LM()
    with torch.inference_mode():
        tiebeam.untie(model, IDS)
        tiebeam.resize(model, 60, IDS)
    model(IDS).sum().backward()
    assert gradient(model.head.weight).shape == (60, 16)


@dataclasses.dataclass(frozen=True)
class Frozen:
    tie_embeddings: bool = True
    vocab: int = 50
    padded_vocab_size: int = 50


@dataclasses.dataclass(frozen=True)
class Outer:
    text: Frozen


def test_configs_that_cannot_be_changed_are_replaced_whole_at_every_depth() -> None:
    model = LM()
    model.cfg, model.settings = Outer(Frozen()), Frozen()
    tiebeam.untie(model, IDS)
    tiebeam.resize(model, 60, IDS)
    assert model.cfg == Outer(Frozen(False, 60, 60))
    assert model.settings == Frozen(False, 60, 60)
    before = everything(model)
    with pytest.raises(tiebeam.RangeError):
        tiebeam.resize(model, 70, IDS, rows="best")  # type: ignore[arg-type]
    assert same(everything(model), before)
