"""What optimizers remember of a table that is tied, untied or given other rows."""

from typing import Any

import pytest
import torch
from tests.torch.operations.models import IDS, LM, everything, gradient, same

import tiebeam
from tiebeam.errors import TieError


def test_tying_adds_gradients_and_moments() -> None:
    model = LM(tied=False)
    model.head.weight.data.copy_(model.embed.weight.data)
    optimizer = torch.optim.Adam(model.parameters(), 0.0)
    model(IDS).square().mean().backward()
    optimizer.step()
    a, b = model.embed.weight, model.head.weight
    grad, mean, square = (
        gradient(a) + gradient(b),
        *(optimizer.state[a][n] + optimizer.state[b][n] for n in ("exp_avg", "exp_avg_sq")),
    )
    change = tiebeam.tie(model, IDS, optimizer=optimizer)
    assert torch.equal(gradient(a), grad)
    assert torch.equal(optimizer.state[a]["exp_avg"], mean)
    assert torch.equal(optimizer.state[a]["exp_avg_sq"], square)
    assert optimizer.state[a]["step"] == 1
    assert b not in optimizer.state
    assert all(p is not b for p in optimizer.param_groups[0]["params"])
    assert change.optimizer == ("embed.weight: joined with head.weight",)


def test_an_optimizer_that_holds_the_readout_alone_steps_the_table_then() -> None:
    model = LM(tied=False)
    groups: list[dict[str, Any]] = [{"params": [model.mid.weight]}, {"params": [model.head.weight], "lr": 0.5}]
    optimizer = torch.optim.Adam(groups)
    tiebeam.tie(model, IDS, on_conflict="mean", optimizer=optimizer)
    assert optimizer.param_groups[1]["params"][0] is model.embed.weight


def test_named_parameters_of_an_optimizer_keep_their_names() -> None:
    model = LM()
    optimizer = torch.optim.AdamW(model.named_parameters())
    tiebeam.untie(model, IDS, optimizer=optimizer)
    names, held = optimizer.param_groups[0]["param_names"], optimizer.param_groups[0]["params"]
    assert all(dict(model.named_parameters())[n] is p for n, p in zip(names, held, strict=True))
    tiebeam.tie(model, IDS, optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == [n for n, _ in model.named_parameters()]


def test_several_optimizers_and_wrapped_ones_are_opened() -> None:
    class Wrapped:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = LM()
    table, body = torch.optim.Adam([model.embed.weight]), torch.optim.SGD(model.mid.parameters(), 0.1)
    tiebeam.untie(model, IDS, optimizer=[Wrapped(table), body])
    assert [id(p) for p in table.param_groups[0]["params"]] == [id(model.embed.weight), id(model.head.weight)]
    assert len(body.param_groups[0]["params"]) == 2
    tiebeam.tie(model, IDS, optimizer=[body, Wrapped(table)])
    assert len(table.param_groups[0]["params"]) == 1


def test_state_that_does_not_say_whose_rows_are_whose_is_refused() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    optimizer.state[model.embed.weight]["blocks"] = torch.zeros(7, 3)
    before = everything(model, optimizer)
    with pytest.raises(TieError, match="blocks"):
        tiebeam.resize(model, 60, IDS, optimizer=optimizer)
    assert same(everything(model, optimizer), before)


def test_an_untied_readout_stands_where_an_optimizer_that_is_built_anew_holds_it() -> None:
    """A state dict knows parameters by their number: right behind the table, moments went to the wrong ones."""
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    tiebeam.untie(model, IDS, optimizer=optimizer)
    resumed = torch.optim.AdamW((other := LM(tied=False)).parameters())
    resumed.load_state_dict(optimizer.state_dict())
    assert [resumed.state[p]["exp_avg"].shape for p in other.parameters()] == [p.shape for p in other.parameters()]


def test_an_optimizer_that_is_given_twice_steps_once() -> None:
    model = LM()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tiebeam.untie(model, IDS, optimizer=[optimizer, optimizer])
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_state_of_all_parameters_at_once_is_refused_whole() -> None:
    model = LM()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def loss() -> Any:
        optimizer.zero_grad()
        value = model(IDS).square().mean()
        value.backward()
        return value

    tiebeam.resize(model, 52, IDS, optimizer=optimizer)  # nothing is remembered yet
    optimizer.step(loss)
    before = everything(model, optimizer)
    for operation in (tiebeam.untie, lambda m, ids, **o: tiebeam.resize(m, 60, ids, **o)):
        with pytest.raises(TieError, match="LBFGS"):
            operation(model, IDS, optimizer=optimizer)
        assert same(everything(model, optimizer), before)


def test_tensors_inside_a_state_are_copied_for_a_readout_and_refused_for_other_rows() -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters())
    model(IDS).sum().backward()
    optimizer.step()
    optimizer.state[model.embed.weight]["factors"] = [torch.zeros(50, 50), torch.zeros(16, 16)]
    tiebeam.untie(model, IDS, optimizer=optimizer)
    ours, theirs = (optimizer.state[p]["factors"] for p in (model.embed.weight, model.head.weight))
    assert ours[0] is not theirs[0]
    with pytest.raises(TieError, match="a list of tensors"):
        tiebeam.resize(model, 60, IDS, optimizer=optimizer)
