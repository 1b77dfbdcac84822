"""The command `tiebeam experiment`, from the list to the page."""

import base64
import csv
import json
import re
import sys

import pytest

RUN = ("experiment", "run", "rank", "--profile", "smoke", "--workers", "1")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_names_every_experiment(run):
    from tiebeam.experiments.catalog import EXPERIMENTS

    shown = run("experiment", "list")
    assert shown.code == 0
    found = json.loads(run("experiment", "list", "--format", "json").out)
    assert [each["name"] for each in found] == list(EXPERIMENTS)
    for each in found:
        assert f"{each['name']} {each['claim']} after {each['source']} paper" in " ".join(shown.out.split())
        assert all(each["profiles"][profile]["runs"] > 0 for profile in ("paper", "laptop", "smoke"))


def test_a_sweep_is_run_shown_drawn_and_exported(run, here):
    first = run(*RUN)
    assert first.code == 0
    assert "Rank of the log-probabilities" in first.out
    assert "shows that it runs, and nothing else" in first.out
    assert first.out.splitlines()[-1] == "tiebeam experiment run rank --profile smoke"
    again = json.loads(run(*RUN, "--format", "json").out)
    assert again["outcomes"] == {"finished": 0, "diverged": 0, "failed": 0, "skipped": 6}
    shown = json.loads(run("experiment", "show", "rank", "--format", "json").out)
    assert shown["tables"] == again["tables"]
    assert (len(shown["runs"]), shown["missing"]) == (6, 0)
    assert "| 4 | 5 | 5 | 5 | 64 |" in run("experiment", "show", "rank", "--format", "markdown").out
    lines = list(csv.DictReader(run("experiment", "export", "rank").out.splitlines()))
    assert {line["name"] for line in lines} == {"rank"}
    assert len(json.loads(run("experiment", "export", "rank", "--format", "json").out)) == 6
    assert run("experiment", "export", "rank", "-o", "x.json").code == 0
    assert len(json.loads((here / "x.json").read_text())) == 6
    assert run("experiment", "export", "rank", "-o", "x.csv").code == 0
    assert (here / "x.csv").read_text().count("\n") == 7
    assert run("experiment", "plot", "rank").out == "nothing to draw\n"


def test_what_is_printed_fits_a_terminal_and_cells_stay_whole(run, here, monkeypatch):
    assert run(*RUN).code == 0
    found = {}
    for columns in (30, 50, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        words = [run("experiment", *words).out.splitlines() for words in (["list"], ["show", "rank"])]
        found[columns] = words[1]
        assert all(len(line) <= columns for line in words[0])
        assert columns == 30 or all(len(line) <= columns for line in words[1])
    cells = {c: [line for line in lines if line.startswith("│")] for c, lines in found.items()}
    assert [line.replace(" ", "") for line in cells[30]] == [line.replace(" ", "") for line in cells[200]]
    assert cells[30] == cells[50] != cells[200]


def test_settings_change_what_is_run_and_stand_in_the_command(run, here):
    words = (*RUN, "--width", "3", "--width", "5", "--vocab", "16", "--set", "seeds=[7]", "--format", "json")
    found = json.loads(run(*words).out)
    configs = {(r["config"]["width"], r["config"]["vocab"], r["config"]["seed"]) for r in found["runs"]}
    assert configs == {(3, 16, 7), (5, 16, 7)}
    assert "--set 'widths=[3, 5]' --set vocab=16" in found["command"]


@pytest.mark.slow
def test_the_page_holds_tables_pictures_the_seeds_figures_and_the_command(run, here):
    words = ("--set", "steps=20", "--set", "seeds=[0,1]", "--workers", "1")
    assert run("experiment", "run", "repeat-bias", "--profile", "smoke", *words).code == 0
    drawn = json.loads(run("experiment", "plot", "repeat-bias", "--out", "figures", "--format", "json").out)
    assert drawn["files"] == [f"figures/repeat-bias-own-rank.{suffix}" for suffix in ("svg", "png")]
    assert (here / drawn["files"][1]).read_bytes().startswith(b"\x89PNG")
    assert run("experiment", "show", "repeat-bias", "-o", "page.html").code == 0
    page = (here / "page.html").read_text()
    assert "<h1>repeat-bias</h1>" in page
    assert "tiebeam experiment run repeat-bias --profile smoke" in page
    assert re.search(r"<td>\d[\d.]* ± ", page)  # an interval over seeds
    assert ">20.3<" in page  # the source's
    assert "<script" not in page
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert [base64.b64decode(p) for p in pictures] == [(here / drawn["files"][0]).read_bytes()]
    assert "http" not in page.partition("<main>")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "absent"), "no experiment is called 'absent'"),
        (("run", "rank", "--profile", "huge"), "no profile 'huge'"),
        (("run", "rank", "--set", "seeds"), "KEY=VALUE"),
        (("run", "rank", "--data", "x.txt"), "reads no text"),
        (("show", "rank"), "no store at"),
        (("run", "schemes", "--set", "schemes=[C]"), """--set 'schemes=["C", "D"]'"""),
        (("export", "rank", "--format", "xml"), "csv or json"),
        (("export", "rank", "-o", "x.html"), "expected: .csv or .json"),
        (("run", "rank", "--store", "absent/runs.sqlite"), "cannot be written"),
        (("run", "rank", "--set", "vocab=null"), "a whole number"),
        (("run", "alignment", "--set", "rate=1e999"), "a finite number above 0"),
        (("run", "rank", "--set", "seeds=[99999999999999999999]"), "0 to 2**63 - 1"),
        (("run", "schemes", "--data", "synthetic", "--set", "vocab=-4"), "2 to 2**63 - 1"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_few_lines_with_exit_code_2(run, here, words, said):
    ended = run("experiment", *words)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_without_matplotlib_a_picture_says_what_to_install(run, here, monkeypatch):
    assert run("experiment", "run", "repeat-bias", "--profile", "smoke", "--set", "steps=2", "--workers", "1").code == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = run("experiment", "plot", "repeat-bias")
    assert ended.code == 2
    assert "tiebeam[experiments]" in ended.err


def test_a_failed_run_is_exit_code_1_and_is_tried_again(run, here, monkeypatch):
    from tiebeam.zoo.numpy.tied import TiedModel

    with monkeypatch.context() as broken:
        broken.setattr(TiedModel, "random", lambda *args, **more: 1 / 0)
        ended = run(*RUN)
    assert ended.code == 1
    assert "6 runs failed" in ended.err
    assert "ZeroDivisionError" in ended.err
    assert "6 of 6 runs are not done yet" in ended.out
    assert run(*RUN).code == 0


def test_an_interrupt_keeps_what_is_done_and_ends_with_130(run, here, monkeypatch):
    import tiebeam.zoo.numpy.tied as tied

    made, real = [], tied.TiedModel.random

    def random(*args, **more):
        made.append(more)
        if len(made) == 4:
            raise KeyboardInterrupt
        return real(*args, **more)

    with monkeypatch.context() as broken:
        broken.setattr(tied.TiedModel, "random", random)
        ended = run(*RUN)
    assert ended.code == 130
    assert re.search(r"interrupted: \d of 6 runs are kept", ended.err)
    assert run(*RUN).code == 0


def test_runs_that_go_on_elsewhere_are_named_with_the_option_that_takes_them_over(run, here):
    from tiebeam.experiments.store import Store

    assert run(*RUN).code == 0
    with Store(here / "tiebeam-experiments.sqlite") as store:
        held = store.runs("rank")[0]
        store._db.execute("UPDATE runs SET status = 'running', owner = 'elsewhere/1/0' WHERE id = ?", (held.id,))
    ended = run(*RUN)
    assert "1 of 6 runs are not done yet" in ended.out
    assert re.search(r"1 run under way in other processes.*--reclaim", ended.err)
    again = run(*RUN, "--reclaim")
    assert "not done yet" not in again.out
    assert "under way" not in again.err


def test_what_acts_on_a_terminal_is_spelt_out(run, here):
    assert run(*RUN, "--store", "a\x1b[31m.sqlite").code == 0
    for form in ("text", "markdown", "html"):
        shown = run("experiment", "show", "rank", "--store", "a\x1b[31m.sqlite", "--format", form).out
        assert "\x1b" not in shown
        assert r"a\x1b[31m.sqlite" in shown


def test_progress_tells_runs_apart():
    from tiebeam.cli.experiment_view import label_of
    from tiebeam.experiments.catalog import EXPERIMENTS

    for each in EXPERIMENTS.values():
        labels = [label_of(config) for config in each.runs(each.profiles["smoke"])]
        assert len(set(labels)) == len(labels), each.name
