"""What each experiment must find: exactly where arithmetic says so, as a structure where chance has a part."""

import math
import re

import numpy as np
import pytest

from tiebeam.experiments.catalog import EXPERIMENTS, experiment, late_untie, schemes
from tiebeam.experiments.chain import Chain
from tiebeam.experiments.paired import beside
from tiebeam.experiments.records import Run
from tiebeam.experiments.runner import Plan, run_sweep
from tiebeam.experiments.spec import PROFILES
from tiebeam.experiments.store import Store
from tiebeam.experiments.sweep import ask, last_runs
from tiebeam.experiments.tables import Figure, Spread, Table

pytestmark = pytest.mark.slow


def done(name, folder, *, profile="smoke", data=(), **changes):
    """Run one sweep, and return its runs."""
    what = experiment(name)
    asked = ask(what, profile, changes, data=data, cache=folder / "data")
    path = folder / f"{name}.sqlite"
    with Store(path) as store:
        store.begin(name, profile, "a command", asked.configs)
    counts = run_sweep(what, asked.configs, Plan(path, asked.tokens, workers=1))
    with Store(path) as store:
        _, runs, missing = last_runs(store, what)
        assert missing == 0, [(counts, run.error) for run in store.runs(name) if run.error]
    return runs


def by(runs, *names):
    return {tuple(run.config[name] for name in names): run.results for run in runs}


# ---- all of them


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_its_profiles_and_runs_that_differ(name):
    what = experiment(name)
    assert tuple(what.profiles) == PROFILES
    for profile in PROFILES:
        configs = what.runs(what.settings(profile, {}))
        assert configs
        assert len({repr(sorted(c.items(), key=str)) for c in configs}) == len(configs)
    assert len(what.runs(what.profiles["smoke"])) <= len(what.runs(what.profiles["laptop"]))
    assert what.source.startswith(("AnyInit", "Inside a Transformer Block", "Deep learning from zero"))


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("schemes", "init-stats")])
def test_a_smoke_run_fills_every_table_and_figure(name, tmp_path):
    small = {"data": ["synthetic"], "steps": 3} if experiment(name).needs == "text" else {}
    runs, what = done(name, tmp_path, **small), experiment(name)
    tables, figures = what.tables(runs), what.figures(runs)
    assert tables
    for table in tables:
        assert isinstance(table, Table)
        assert table.rows
        assert "diverged" not in table.to_markdown()
        assert not re.search(r"seed \d", table.to_markdown())  # a document's figures read like those of a random seed
    for figure in figures:
        assert isinstance(figure, Figure)
        assert all(math.isfinite(y) for line in figure.lines for _, y in line.points)


# ---- AnyInit's page


@pytest.mark.slow
@pytest.mark.wide
def test_before_training_the_formula_is_right_within_three_percent(tmp_path):
    runs = done("init-stats", tmp_path, data=["synthetic"], vocab=8192, widths=[128, 256], layers=2, block=64)
    for (scheme, width), found in by(runs, "scheme", "width").items():
        assert found["loss"] == pytest.approx(found["formula loss"], rel=0.03), (scheme, width)
        assert found["std"] == pytest.approx(found["formula std"], rel=0.03), (scheme, width)
    losses = {key: found["loss"] for key, found in by(runs, "scheme", "width").items()}
    assert losses["A", 256] > 1.9 * losses["A", 128] > 20 * math.log(8192) / 2
    assert losses["C", 128] == pytest.approx(losses["D", 128], rel=1e-6)  # one function
    assert losses["B", 128] == pytest.approx(math.log(8192), rel=0.01)


@pytest.mark.slow
@pytest.mark.wide
def test_trained_in_matched_groups_the_readout_factor_is_the_lookup_factor_in_every_bit(tmp_path):
    runs = done(
        "schemes", tmp_path, data=["synthetic"], schemes=["C", "D", "D'"], unclipped=["C", "D", "D'"], vocab=300
    )
    series = {
        (run.config["scheme"], run.config["clip"]): run.series["loss"] for run in runs if run.config["rate"] == 4e-3
    }
    assert series["C", None] == series["D'", None]
    assert series["C", None] != series["D", None]
    gaps = {
        s: max(abs(a - b) for (_, a), (_, b) in zip(series["C", 1.0], series[s, 1.0], strict=True)) for s in ("D", "D'")
    }
    assert 0 < gaps["D'"] < gaps["D"]
    what = experiment("schemes")
    same = next(table for table in what.tables(runs) if table.title.startswith("C, D"))
    assert ("C and D'", "64", "no", 4e-3, 0.0) in same.rows
    assert {figure.name for figure in what.figures(runs)} == {"loss-64", "rate-64"}
    ratios = {run.config["scheme"]: run.results["ratio at 0"] for run in runs}
    assert all(0.1 < ratio < 2 for ratio in ratios.values())  # the source: 0.6


@pytest.mark.parametrize("steps", [2, 6])
def test_a_rate_that_no_model_survives_ends_as_diverged_and_not_as_an_error(steps, tmp_path):
    """What diverged first are the weights: the loss refuses to read them, and so does what measures the roles."""
    few = {"schemes": ["C"], "unclipped": ["C"], "rates": [1e30], "fast": [1e30], "steps": steps, "vocab": 300}
    runs = done("schemes", tmp_path, data=["synthetic"], **few)
    assert [run.status for run in runs] == ["diverged"] * 2
    for run in runs:
        assert math.isnan(run.results["last"])
        assert math.isfinite(run.results["first"])
        assert math.isfinite(run.series["loss"][0][1])
    (_, every) = experiment("schemes").tables(runs)
    assert "diverged" in every.to_markdown()


def test_a_table_shows_models_that_diverged_too(tmp_path):
    runs = done("factorised", tmp_path, data=["synthetic"], rates=[1e30], steps=2, vocab=300, variants=["tied"])
    assert [run.status for run in runs] == ["diverged"]
    (table,) = experiment("factorised").tables(runs)
    assert "diverged" in table.to_markdown()


@pytest.mark.parametrize("name", ["alignment", "dropped-path", "repeat-bias"])
@pytest.mark.parametrize("rate", [1e200, 1e300])
def test_a_training_by_hand_that_diverges_is_recorded_as_such(name, rate, tmp_path):
    """It ended as finished, and the token just read had a rank among numbers that are none."""
    runs, what = done(name, tmp_path, rate=rate, steps=12, seeds=[0]), experiment(name)
    trained = [run for run in runs if run.config.get("variant") != "lookup alone"]
    assert {run.status for run in trained} == {"diverged"}
    for table in what.tables(runs):
        assert "nan" not in table.to_markdown()
    assert "diverged" in what.tables(runs)[0].to_markdown()
    what.figures(runs)


def test_rates_are_compared_with_the_width_that_was_named_first(tmp_path):
    """The narrowest was taken for it, whatever the runs had been told."""
    small = {"widths": [64, 32], "rates": [1e-3, 8e-3], "steps": 2, "vocab": 300}
    runs, what = done("lr-transfer", tmp_path, data=["synthetic"], **small), experiment("lr-transfer")
    (table,) = what.tables(runs)
    assert "Scheme D at width 64" in table.notes[0]
    (early,) = what.tables([run for run in runs if run.config["width"] == 32])  # of a sweep under way
    assert [row[4:] for row in early.rows] == [(None, None)] * 2


def test_where_one_of_two_trainings_diverged_they_are_not_said_to_be_near():
    def run(scheme, *losses):
        config = {"scheme": scheme, "width": 8, "rate": 0.1, "clip": None, "seed": 0}
        series = {"loss": tuple(enumerate(losses))}
        return Run(1, "schemes", "", config, "finished", 0.0, 1.0, None, {}, "", "", {"last": losses[-1]}, series)

    (table,) = schemes._same([run("C", 2.0, 1.0), run("D'", 2.0, math.nan)])
    assert math.isnan(table.rows[0][-1])


def test_untied_half_way_a_model_is_the_tied_one_until_then_and_trains_on(tmp_path):
    runs = done("late-untie", tmp_path, data=["synthetic"], steps=6, vocab=300)
    losses = {run.config["variant"]: [loss for _, loss in run.series["loss"]] for run in runs}
    tied, kept, lost, early = (losses[v] for v in late_untie.VARIANTS)
    assert kept[:4] == lost[:4] == tied[:4]  # before the fourth step nothing has moved apart yet
    assert kept[4] != tied[4]
    assert kept[4] != lost[4]
    assert early[0] == tied[0]
    assert early[1] != tied[1]


# ---- the lesson


def test_gpt2_and_llama_save_what_seed_1_says(tmp_path):
    runs = done("savings", tmp_path, profile="laptop")
    (table,) = experiment("savings").tables(runs)
    rows = {row[0]: row for row in table.rows}
    assert rows["GPT-2 small"][2:7] == (163_037_184, 163_037_184, 124_439_808, 124_439_808, "23.7 %")
    assert rows["Llama 3 8B"][2:7] == (8_030_261_248, 8_030_261_248, 7_504_924_672, 7_504_924_672, "6.5 %")
    assert rows["TinyLM of the lesson"][2:6] == (132_160, 132_160, 68_160, 68_160)


def test_log_probabilities_have_rank_width_plus_one_unless_they_are_a_mixtures(tmp_path):
    for (width, readout), found in by(done("rank", tmp_path), "width", "readout").items():
        assert (found["rank"] == width + 1) == (readout != "mixture")
        assert found["rank"] >= width + 1


# ---- the from-scratch page


def test_dropped_paths_have_exactly_the_wrong_rows_of_seed_3(tmp_path):
    found = by(done("dropped-path", tmp_path, seeds=[0, 1]), "variant", "seed")
    wrong = {key: results["wrong rows"] for key, results in found.items()}
    for seed in (0, 1):
        assert [wrong[v, seed] for v in ("both paths", "readout alone", "lookup alone")] == [0, 8, 64]
        assert found["readout alone", seed]["last"] > found["both paths", seed]["last"]


def test_the_token_just_read_is_first_where_a_stream_and_a_tie_put_it_there(tmp_path):
    found = by(done("repeat-bias", tmp_path, seeds=[0, 1, 2], steps=2), "variant", "seed")
    first = {v: np.mean([found[v, s]["first rank"] for s in range(3)]) for v, _ in found}
    assert first["tied, res = 1"] < 2.5
    assert abs(first["untied"] - 32.5) < 8
    assert abs(first["tied, res = 0"] - 32.5) < 8


@pytest.mark.slow
@pytest.mark.wide
def test_a_tie_costs_where_input_and_output_share_no_space(tmp_path):
    found = by(done("alignment", tmp_path, profile="paper", seeds=[0, 1]), "task", "tie", "seed")
    ratio = {(t, s): found[t, True, s]["excess"] / found[t, False, s]["excess"] for t, _, s in found}
    for seed in (0, 1):
        assert 0.7 < ratio["aligned", seed] < 1.3 < ratio["misaligned", seed]


def test_a_fine_grid_finds_what_a_coarse_one_misses(tmp_path):
    found = by(done("std-grid", tmp_path, profile="laptop", seeds=[0]), "grid")
    assert found[("coarse",)]["hits"] == 0
    assert found[("fine",)]["hits"] > 0
    assert found[("fine",)]["stream"] == pytest.approx(2.0)
    assert 3.5 < found[("fine",)]["logits"] < 4.0


@pytest.mark.parametrize("kind", ["aligned", "misaligned"])
def test_a_task_knows_its_own_entropy(kind):
    chain = Chain.drawn(kind, vocab=24, seed=3)
    assert chain.follows.sum(axis=1) == pytest.approx(1.0)
    assert np.all(np.diag(chain.follows) == 0)
    best = np.log(np.maximum(chain.follows, 1e-300))
    assert chain.loss(best) == pytest.approx(chain.entropy)
    assert chain.loss(best + 5.0) == pytest.approx(chain.entropy)
    assert chain.loss(np.zeros((24, 24))) == pytest.approx(math.log(24))
    ids, right = chain.sample(np.random.default_rng(0), 200_000)
    seen = np.zeros((24, 24))
    np.add.at(seen, (ids, right), 1.0)
    assert np.abs(seen / seen.sum(axis=1, keepdims=True) - chain.follows).max() < 0.02


# ---- tables


def test_an_interval_is_students():
    found = Spread.of([1.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.count) == (2.5, 4)
    assert found.half == pytest.approx(3.182 * np.std([1, 2, 3, 4], ddof=1) / 2)
    assert Spread.of([1.0]).half is None
    assert str(Spread.of([1.0, math.nan])) == "diverged"
    assert Spread.of([]).count == 0


def ended(seed, last):
    """A run that is over."""
    return Run(1, "x", "", {"seed": seed}, "finished", 0.0, 1.0, None, {}, "", "", {"last": last}, {})


def test_models_are_compared_seed_by_seed_so_that_what_a_seed_does_to_both_is_no_doubt():
    one, other = [ended(0, 5.0), ended(1, 9.0)], [ended(1, 8.5), ended(0, 4.75), ended(2, 1.0)]
    found = beside(one, other)
    assert (found.mean, found.count) == (0.375, 2)
    assert found.half == pytest.approx(12.706 * 0.125)
    assert found.half < Spread.of([5.0, 9.0]).half
    assert beside(one, [ended(2, 1.0)]) is None
    assert beside(one, []) is None


def test_a_row_that_does_not_fit_its_table_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2"):
        Table("t", ("a", "b"), (("x",),))
