"""Watching a loop: what is written down, and what is warned of, once."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from tests.measure.models import VOCAB, Tied, batch, next_token_loss, plain
from torch import Tensor, nn

import tiebeam
from tiebeam.core.measurement import Measurement
from tiebeam.errors import BackendError


def test_records_go_to_memory_to_a_callable_and_to_json_lines(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    watch = tiebeam.Watch(Tied(plain), 5, seen.append, path=tmp_path / "watch.jsonl")
    returned = [watch(step, batch()) for step in range(11)]
    assert [r is not None for r in returned] == [step % 5 == 0 for step in range(11)]
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert lines == seen
    assert [r["step"] for r in seen] == [0, 5, 10]
    assert {"initial_loss", "role_ratio", "own_rank", "lookup_grad_norm", "readout_rows"} <= set(seen[0])
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


def test_every_must_be_a_number_of_steps() -> None:
    with pytest.raises(tiebeam.RangeError, match="every=0"):
        tiebeam.Watch(Tied(plain), every=0)


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


def test_what_cannot_be_watched_is_refused_at_once() -> None:
    with pytest.raises(BackendError, match="cannot look at a str"):
        tiebeam.Watch("a model")  # type: ignore[arg-type]
