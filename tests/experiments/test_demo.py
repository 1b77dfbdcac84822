"""The demo, at sizes that take seconds: its text, its training and what it reports."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tiebeam.errors import InputError, RangeError
from tiebeam.experiments.corpus import END, Corpus, collect_corpus, encode_corpus, train_tokenizer
from tiebeam.experiments.curve import Curve
from tiebeam.experiments.demo.result import STAGES
from tiebeam.experiments.demo.run import DemoSettings, run_demo
from tiebeam.experiments.training import TrainSettings, train, validate
from tiebeam.experiments.windows import draw_windows, spread_windows
from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig

pytestmark = pytest.mark.slow

TINY = DemoSettings(
    vocab=400,
    max_bytes=120_000,
    width=64,
    layers=1,
    heads=2,
    block_size=32,
    inspected=2,
    sample_tokens=8,
    training=TrainSettings(steps=24, batch=4, rate=5e-3, warmup=4, validate_every=10, validation_windows=8),
)


@pytest.fixture(scope="module")
def corpus():
    return collect_corpus(max_bytes=120_000)


@pytest.fixture(scope="module")
def data(corpus):
    return encode_corpus(corpus, train_tokenizer(corpus.train, vocab=400))


def tiny_model(vocab, *, table_std, seed=0):
    config = MiniGPTConfig(vocab=vocab, width=64, layers=1, heads=2, block_size=32, table_std=table_std)
    return MiniGPT(config, generator=torch.Generator().manual_seed(seed))


# ---- the text


def test_the_corpus_is_the_standard_library_and_the_same_each_time(corpus):
    assert corpus == collect_corpus(max_bytes=120_000)
    assert 60_000 < corpus.size <= 120_000
    assert any("import " in text for text in corpus.train)
    assert not set(corpus.train) & set(corpus.validation)


def test_the_order_of_files_depends_on_their_names_alone(tmp_path):
    for name in ("a.py", "b/c.py", "b/d.py", "e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    for skipped in ("site-packages/x.py", "test/y.py", "b/__pycache__/z.py", "notes.txt"):
        (tmp_path / skipped).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / skipped).write_text("# not this")
    before = collect_corpus(root=tmp_path)
    assert sorted(before.train + before.validation) == ["# a.py", "# b/c.py", "# b/d.py", "# e.py"]
    (tmp_path / "a.py").write_text("# something else")
    after = collect_corpus(root=tmp_path)
    replaced = [text.replace("# a.py", "# something else") for text in before.train + before.validation]
    assert list(after.train + after.validation) == replaced


def test_a_folder_without_python_is_refused(tmp_path):
    with pytest.raises(InputError, match="zip file"):
        collect_corpus(root=tmp_path)


def test_tokens_turn_back_into_the_text_they_came_from(corpus, data):
    ends = np.flatnonzero(data.validation == data.tokenizer.token_to_id(END))
    assert len(ends) == len(corpus.validation)
    assert data.tokenizer.decode(data.validation[: ends[0]].tolist()) == corpus.validation[0]
    assert data.vocab == 400
    assert max(data.train.max(), data.validation.max()) < 400
    assert data.train.dtype == np.int64


def test_a_tokenizer_trained_twice_is_the_same(corpus, data):
    again = encode_corpus(corpus, train_tokenizer(corpus.train, vocab=400))
    np.testing.assert_array_equal(again.train, data.train)


def test_bytes_that_training_never_saw_are_still_tokens():
    tokenizer = train_tokenizer(["a = 1\n"], vocab=300)
    text = "größe = '龍'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    with pytest.raises(InputError, match="more than 256"):
        train_tokenizer(["a"], vocab=256)


def test_text_that_is_not_utf8_is_read_all_the_same(tmp_path):
    (tmp_path / "a.py").write_bytes(b"# caf\xe9")
    (tmp_path / "b.py").write_bytes(b"b")
    assert collect_corpus(root=tmp_path).files == 2


# ---- training


def test_every_model_gets_the_same_batches(data):
    one, two, other = (
        torch.stack([next(batches) for _ in range(3)])
        for batches in (
            draw_windows(data.train, 9, batch=3, seed=4),
            draw_windows(data.train, 9, batch=3, seed=4),
            draw_windows(data.train, 9, batch=3, seed=5),
        )
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == (3, 3, 9)


def test_windows_reach_the_last_token():
    ids = np.arange(10)
    windows = torch.cat([next(draw_windows(ids, 9, batch=64, seed=0))])
    assert {int(window[0]) for window in windows} == {0, 1}
    assert spread_windows(ids, 4, 3)[:, 0].tolist() == [0, 3, 6]
    for windows_of in (lambda: draw_windows(ids, 11, batch=8, seed=0), lambda: spread_windows(ids, 11, 2)):
        with pytest.raises(InputError, match="shorter than one window"):
            windows_of()


def test_the_rate_warms_up_and_falls_to_its_floor():
    settings = TrainSettings(steps=100, rate=2.0, warmup=10, floor=0.1)
    rates = [settings.rate * settings.share_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(2.0, rel=0.03)
    assert int(np.argmax(rates)) == 9
    assert rates[-1] == pytest.approx(0.2, rel=0.01)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))
    with pytest.raises(RangeError, match="steps"):
        TrainSettings(steps=0)


def test_training_is_repeatable_and_tells_of_every_step(data):
    told = []
    curves = [
        train(tiny_model(data.vocab, table_std=0.125), data.train, data.validation, TINY.training, on_step)
        for on_step in (lambda step, loss: told.append((step, loss)), lambda step, loss: None)
    ]
    assert [step for step, _ in told] == list(range(1, 25))
    assert tuple(loss for _, loss in told) == curves[0].train == curves[1].train
    assert [step for step, _ in curves[0].validation] == [0, 10, 20, 24]
    assert curves[0].initial_loss == pytest.approx(math.log(400), abs=0.7)
    assert curves[0].final_loss < curves[0].initial_loss - 1.0


def test_validation_changes_nothing_and_weighs_windows_alike(data):
    model = tiny_model(data.vocab, table_std=0.125)
    windows = spread_windows(data.validation, 33, 5)
    whole = validate(model, windows, batch=5)
    assert validate(model, windows, batch=2) == pytest.approx(whole, rel=1e-5)
    assert model.training


def test_a_curve_knows_when_it_was_first_below():
    curve = Curve((9.0,), ((0, 9.0), (10, 5.0), (20, 5.5)), 1.0)
    assert (curve.first_below(5.2), curve.first_below(5.0), curve.first_below(4.0)) == (10, 10, None)


# ---- the whole


@pytest.fixture(scope="module")
def demo():
    events = []
    return run_demo(on_event=events.append, settings=TINY), events


def test_the_mistake_is_diagnosed_and_the_mended_model_is_healthy(demo):
    result, _ = demo
    mistake, mended = result.mistake.report, result.mended.report
    assert mistake.tables[0].tied
    assert [f.code for f in mistake.findings if f.severity == "error"] == ["init-scale"]
    mended.assert_healthy()
    assert mistake.tables[0].std == pytest.approx(1.0, rel=0.05)
    assert mended.tables[0].std == pytest.approx(64**-0.5, rel=0.05)
    assert result.initialized.init[0].measured_logit_std == pytest.approx(1.0, rel=0.05)


def test_the_predicted_first_losses_are_the_measured_ones(demo):
    for run in (demo[0].mistake, demo[0].mended):
        predicted = run.report.tables[0].predicted.initial_loss
        assert predicted == pytest.approx(run.curve.initial_loss, rel=0.1)


def test_the_mistake_costs_what_training_cannot_soon_repay(demo):
    result, _ = demo
    mistake, mended = result.mistake.curve, result.mended.curve
    assert mistake.initial_loss > 4 * result.log_vocab
    assert mended.initial_loss == pytest.approx(result.log_vocab, abs=0.7)
    assert mended.final_loss < mistake.final_loss - 1.0
    assert result.caught_up_at is not None
    assert result.caught_up_at < TINY.training.steps


def test_every_stage_tells_its_beginning_and_its_end_in_order(demo):
    _, events = demo
    order = list(dict.fromkeys(event.stage for event in events))
    names = [name for name, _ in STAGES]
    assert order[:5] == names[:5]
    assert set(order[5:7]) == {"train-mistake", "train-mended"}
    assert order[7:] == ["sample"]
    for name in order:
        own = [event for event in events if event.stage == name]
        assert [event.done for event in own] == list(range(own[0].total + 1))
        assert {event.total for event in own} == {own[-1].done}
    losses = [e.loss for e in events if e.stage == "train-mended" and e.loss is not None]
    assert len(losses) == 23


def test_the_result_is_plain_data_that_holds_the_whole_story(demo):
    result, _ = demo
    told = json.loads(json.dumps(result.to_dict()))
    assert told["mended"]["curve"]["validation"][-1][0] == 24
    assert told["config"]["width"] == 64
    assert told["settings"]["steps"] == 24
    assert told["corpus"]["train_tokens"] > 10_000
    assert max(told["stage_seconds"].values()) < told["seconds"] < 1.1 * sum(told["stage_seconds"].values())
    assert told["mistake"]["report"]["framework"] == "torch"
    assert set(told["stage_seconds"]) == {name for name, _ in STAGES}


def test_both_models_continue_the_prompt(demo):
    for run in (demo[0].mistake, demo[0].mended):
        assert run.sample.startswith("def ")
        assert len(run.sample) > len("def ")
    assert demo[0].mistake.sample != demo[0].mended.sample


@pytest.mark.parametrize("stage", ["corpus", "train-mistake", "train-mended", "sample"])
def test_whoever_listens_can_break_off(stage):
    def listen(event):
        if event.stage == stage and event.done >= min(2, event.total):
            raise KeyboardInterrupt

    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run_demo(steps=3 if stage == "sample" else 5_000, on_event=listen, settings=TINY)
    assert torch.get_num_threads() == threads


def test_steps_override_the_settings():
    result = run_demo(steps=2, settings=TINY)
    assert len(result.mended.curve.train) == 2
    assert result.settings["steps"] == 2


def test_the_packages_load_no_framework():
    modules = "tiebeam.experiments, tiebeam.experiments.demo, tiebeam.experiments.demo.result, tiebeam.zoo"
    code = (
        f"import sys, {modules}, tiebeam.zoo.torch, tiebeam.zoo.numpy, tiebeam.zoo.schemes;"
        "print(sorted({'torch', 'jax', 'keras', 'tokenizers', 'rich', 'typer'} & set(sys.modules)))"
    )
    src = str(Path(__file__).parents[2] / "src")

    def loaded(code):
        run = {"capture_output": True, "text": True, "check": True, "env": {"PYTHONPATH": src}}
        return subprocess.run([sys.executable, "-c", code], **run).stdout.strip()

    assert loaded(code) == "[]"
    assert "tokenizers" in loaded(code.replace("import sys,", "import tokenizers, sys,"))  # it can fail


def test_a_corpus_counts_its_files():
    assert Corpus(Path(), ("a", "b"), ("c",), 3).files == 3
