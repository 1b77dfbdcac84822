"""Watching a loop: what is written down, and what is warned of, once."""

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.measure.models import VOCAB, Tied, batch, next_token_loss, plain
from torch import Tensor, nn

import tiebeam
from tiebeam.core.measuring.measurement import Measurement
from tiebeam.errors import BackendError, InputError


def test_records_go_to_memory_to_a_callable_and_to_json_lines(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    watch = tiebeam.Watch(Tied(plain), 5, seen.append, path=tmp_path / "watch.jsonl")
    returned = [watch(step, batch()) for step in range(11)]
    assert [r is not None for r in returned] == [step % 5 == 0 for step in range(11)]
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert lines == seen
    assert [r["step"] for r in seen] == [0, 5, 10]
    assert {"loss", "role_ratio", "own_rank", "lookup_grad_norm", "readout_rows"} <= set(seen[0])
    assert [found for _, found in watch.history] == [r for r in returned if r is not None]


def test_a_watched_run_is_the_run_that_is_not_watched() -> None:
    models = [Tied(plain), Tied(plain)]
    for model, watched in zip(models, (True, False), strict=True):
        watch, optimizer = tiebeam.Watch(model, every=2), torch.optim.AdamW(model.parameters())
        for step in range(5):
            next_token_loss(model(batch(seed=step)), batch(seed=step)).backward()
            if watched:
                watch(step, batch(seed=step))
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_a_tie_that_breaks_is_warned_of_once() -> None:
    model = Tied(plain)
    watch = tiebeam.Watch(model, every=1)
    watch(0, batch())
    model.second = nn.Parameter(model.table.detach() + torch.randn(VOCAB, 8))
    with pytest.warns(UserWarning, match=r"step 1: the tie of 'table' broke: it is now untied"):
        watch(1, batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(2, batch())


def test_a_tie_that_becomes_two_copies_is_called_that() -> None:
    model = Tied(plain)
    watch = tiebeam.Watch(model, every=1)
    watch(0, batch())
    model.second = nn.Parameter(model.table.detach().clone())
    with pytest.warns(UserWarning, match=r"the tie of 'table' broke: the two are now copies"):
        watch(1, batch())


def test_a_role_that_dies_is_warned_of() -> None:
    model = Tied(lambda ids, a, b, body: body(a[ids] if not dead else a.detach()[ids]) @ b.T)
    dead = False
    watch = tiebeam.Watch(model, every=1)
    watch(0, batch())
    dead = True
    with pytest.warns(UserWarning, match="step 1") as told:
        watch(1, batch())
    assert [str(w.message) for w in told] == [
        "step 1: the tie of 'table' broke: it is now cut",
        "step 1: the lookup of 'table' sends no gradient",
    ]


class OwnFirst(nn.Module):
    """Says the token that it read, at any step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids) @ self.embed.weight.T


def test_an_own_token_bias_that_stays_is_warned_of_after_a_hundred_steps_and_not_before() -> None:
    watch = tiebeam.Watch(OwnFirst(), every=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(0, batch())
        watch(50, batch())
    with pytest.warns(UserWarning, match=r"step 100: the token just read still ranks 1 of 40"):
        watch(100, batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(150, batch())


def test_where_tokens_repeat_the_own_token_is_right() -> None:
    watch = tiebeam.Watch(OwnFirst(), every=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (0, 100, 200):
            watch(step, torch.full((2, 6), 3))


def test_a_loss_that_is_not_finite_is_written_down_and_training_goes_on(tmp_path: Path) -> None:
    model = Tied(plain)
    with torch.no_grad():
        model.table.fill_(float("inf"))
    watch = tiebeam.Watch(model, every=1, path=tmp_path / "watch.jsonl")
    with pytest.warns(UserWarning, match="the loss is not finite"):
        assert watch(0, batch()) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch(1, batch()) is None
    assert "not finite" in json.loads((tmp_path / "watch.jsonl").read_text().splitlines()[1])["error"]
    assert watch.history == []


@pytest.mark.parametrize("every", [0, 1.5, "often"])
def test_every_must_be_a_number_of_steps(every: int) -> None:
    with pytest.raises(tiebeam.RangeError, match=f"every={every!r}"):
        tiebeam.Watch(Tied(plain), every=every)


@pytest.mark.parametrize("given", [{"log": 3}, {"loss": "mse"}])
def test_what_a_watch_is_to_call_is_looked_at_before_training(given: dict[str, Any]) -> None:
    with pytest.raises(tiebeam.InputError, match="cannot be called"):
        tiebeam.Watch(Tied(plain), **given)


@pytest.mark.slow
def test_a_trainer_calls_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    model, ids = GPT2LMHeadModel(config), batch()
    rows = [{"input_ids": row, "labels": row} for row in ids]
    watch = tiebeam.Watch(model, every=2)
    args = TrainingArguments(
        str(tmp_path), max_steps=4, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=99
    )
    callback = watch.trainer_callback({"input_ids": ids, "labels": ids})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(model, args, train_dataset=rows, callbacks=[callback]).train()
    assert [step for step, _ in watch.history] == [0, 2, 4]
    assert all(isinstance(found, Measurement) and found.role_ratio for _, found in watch.history)


def lightning_module(model: nn.Module) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Tensor:
            [ids] = batch
            return next_token_loss(self.model(ids), ids)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def lightning_run(model: nn.Module, callbacks: list[Any], folder: Path, steps: int = 5, **told: Any) -> None:
    import lightning.pytorch as pl

    rows = torch.cat([batch(seed=seed) for seed in range(6)])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=2)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=callbacks, default_root_dir=folder, **quiet, **told
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(lightning_module(model), loader)


@pytest.mark.slow
@pytest.mark.parametrize("told", [{}, {"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}], ids=str)
@pytest.mark.parametrize("fixed", [True, False], ids=["one batch", "its batches"])
def test_lightning_calls_it_and_trains_as_without(told: dict[str, Any], fixed: bool, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    models, records = [Tied(plain), Tied(plain)], []
    watch = tiebeam.Watch(models[0], every=2, log=records.append)
    lightning_run(models[0], [watch.lightning_callback(batch() if fixed else None)], tmp_path, **told)
    lightning_run(models[1], [], tmp_path, **told)
    assert [step for step, _ in watch.history] == [r["step"] for r in records] == [0, 2, 4]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    first = batch() if fixed else batch(seed=0)
    with torch.autocast("cpu", torch.bfloat16, enabled="precision" in told):
        assert watch.history[0][1].initial_loss == tiebeam.measure(Tied(plain), first).initial_loss


@pytest.mark.slow
def test_the_end_of_a_lightning_run_is_measured_and_other_processes_are_silent(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    watch = tiebeam.Watch(model := Tied(plain), every=2, path=tmp_path / "watch.jsonl")
    lightning_run(model, [watch.lightning_callback()], tmp_path, steps=4)
    assert [step for step, _ in watch.history] == [0, 2, 4]
    callback = watch.lightning_callback(batch())
    callback.on_train_start(types.SimpleNamespace(is_global_zero=False), None)
    with torch.no_grad():
        model.table.fill_(float("inf"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(6, batch())
    assert len((tmp_path / "watch.jsonl").read_text().splitlines()) == 3


def test_without_lightning_its_callback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebeam.api import callbacks

    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    with pytest.raises(BackendError, match=r"(?s)needs Lightning.*pip install 'tiebeam\[lightning\]'"):
        tiebeam.Watch(Tied(plain)).lightning_callback(batch())


def test_what_cannot_be_watched_is_refused_at_once() -> None:
    with pytest.raises(BackendError, match="cannot look at a str"):
        tiebeam.Watch("a model")  # type: ignore[arg-type]


def test_a_path_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)no folder '.*absent'.*make the folder first"):
        tiebeam.Watch(Tied(plain), path=tmp_path / "absent" / "watch.jsonl")
    with pytest.raises(InputError, match="got: a folder"):
        tiebeam.Watch(Tied(plain), path=tmp_path)


def test_the_loss_has_the_name_that_printouts_give_it() -> None:
    watch = tiebeam.Watch(Tied(plain), every=1)
    found = watch(0, batch())
    assert found is not None
    assert watch.history == [(0, found)]
    assert found.loss == found.initial_loss > 0


@pytest.mark.parametrize("step", [batch(), "5", 2.5, None])
def test_what_is_no_step_is_refused_at_once(step: Any) -> None:
    watch = tiebeam.Watch(Tied(plain))
    with pytest.raises(InputError, match=r"(?s)with the step first.*got: .*Hint: watch\(step, batch\)"):
        watch(step, batch())
    assert not watch.history


def test_a_step_that_is_counted_in_a_tensor_is_written_down_as_a_number(tmp_path: Path) -> None:
    watch = tiebeam.Watch(Tied(plain), path=tmp_path / "watch.jsonl")
    watch(torch.tensor(100), batch())
    assert [json.loads(line)["step"] for line in (tmp_path / "watch.jsonl").read_text().splitlines()] == [100]
    assert type(watch.history[0][0]) is int
