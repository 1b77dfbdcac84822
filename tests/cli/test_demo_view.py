"""The demo on a terminal, run for real for a few steps."""

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tiebeam.cli.demo import closing_table, page, rows, show_demo

if TYPE_CHECKING:
    from tiebeam.experiments.demo.result import DemoResult

pytestmark = pytest.mark.slow
SMALL = {"max_bytes": 300_000, "width": 32, "layers": 1, "heads": 2, "sample_tokens": 8}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple["DemoResult", str, str]:
    out = tmp_path_factory.mktemp("demo") / "demo.html"
    console = Console(file=io.StringIO(), width=120, force_terminal=True, highlight=False)
    result = show_demo(out, console=console, steps=3, vocab=400, **SMALL)
    return result, console.file.getvalue(), out.read_text("utf-8")


def test_every_stage_gets_a_bar_with_its_losses(shown: tuple["DemoResult", str, str]) -> None:
    from tiebeam.experiments.demo.result import STAGES

    result, text, _ = shown
    for _, doing in STAGES:
        assert doing[:30] in text
    assert f"-> {result.mended.curve.final_loss:.2f}" in text


def test_the_closing_table_holds_what_was_measured(shown: tuple["DemoResult", str, str]) -> None:
    result, text, _ = shown
    body = {what: (a, b) for what, a, b in rows(result)}
    first, mended = body["first loss, measured"]
    assert float(first) == pytest.approx(result.mistake.curve.initial_loss, rel=0.01)
    assert float(mended) == pytest.approx(result.mended.curve.initial_loss, rel=0.01)
    assert float(mended) < float(first)
    assert first in text
    assert "init-scale" in text
    assert "seconds, both trained at once" in body  # wall time of either: they share the cores


def test_a_perplexity_after_few_steps_fits_its_cell_at_any_size(shown: tuple["DemoResult", str, str]) -> None:
    """It was 91,621,701,511,083,357, ... and the terminal cut it."""
    result, *_ = shown
    for loss, said in ((101.23, "9.2e+43"), (900.0, "inf"), (8.35, "4,230"), (6.882, "975")):
        curve = replace(result.mistake.curve, validation=((0, loss),))
        console = Console(file=io.StringIO(), width=80, highlight=False)
        console.print(closing_table(replace(result, mistake=replace(result.mistake, curve=curve))))
        assert said in console.file.getvalue()
        assert "…" not in console.file.getvalue()


def test_the_page_shows_both_curves_and_the_report(shown: tuple["DemoResult", str, str]) -> None:
    result, _, html = shown
    assert html == page(result)
    assert html.count("tb-curve tb-s") == 2
    assert "init-scale" in html
    assert "after tiebeam.initialize" in html


def test_the_command_writes_the_page_and_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiebeam.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--steps", "1", "--vocab", "300", "--out", "d.html"])
    assert not ended.value.code
    assert (tmp_path / "d.html").stat().st_size > 10_000
    assert "report with both loss curves" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["d.txt", "d.json", "d"])
def test_a_name_of_another_format_is_refused_before_anything_is_trained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiebeam.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--steps", "1", "--vocab", "300", "--out", name])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "expected: .html or .htm" in said
    assert "name it 'd.html'" in said
    assert not list(tmp_path.iterdir())
