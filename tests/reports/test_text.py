import io
import os
import subprocess
import sys
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.cells import cell_len
from tests.reports.examples import (
    EMPTY,
    EXAMPLES,
    HEALTHY,
    MANY_NAMES,
    META,
    TIED,
    UNHEALTHY,
    UNKNOWN,
    UNTIED,
)

from tiebeam.core.report import TableInit
from tiebeam.reports.text import to_text

every_report = pytest.mark.parametrize("report", EXAMPLES.values(), ids=EXAMPLES)


def plain(report, width=80, encoding="utf-8"):
    return to_text(report, width=width, color=False, encoding=encoding)


def row(text, label):
    """The value of a row, its lines joined."""
    lines = iter(text.splitlines())
    value = next(line.removeprefix(f"  {label}").strip() for line in lines if line.startswith(f"  {label}  "))
    for line in lines:
        if not line.startswith(" " * 20):
            break
        value += f" {line.strip()}"
    return value


@every_report
@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 132])
def test_no_line_is_longer_than_the_page_or_ends_in_a_blank(report, width):
    for line in plain(report, width).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


@given(st.text(st.characters(), max_size=90), st.integers(20, 100))
def test_a_name_of_any_characters_fits_the_page(name, width):
    report = replace(UNHEALTHY, model=name, tables=(replace(TIED, names=(name or "x",)),), notes=(name,))
    assert max(map(cell_len, plain(report, width).splitlines())) <= width


@every_report
def test_without_colour_there_is_no_escape_sequence(report):
    assert "\x1b" not in plain(report)
    assert "\x1b" not in str(report)


def test_with_colour_the_words_are_the_same():
    colored = to_text(UNHEALTHY, width=80, color=True, encoding="utf-8")
    assert "\x1b[1;31merror\x1b[0m" in colored
    stripped = "\n".join(line.rstrip() for line in uncolored(colored).splitlines())
    assert stripped == plain(UNHEALTHY)


def uncolored(text):
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@every_report
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "no-such-encoding"])
def test_every_character_can_be_written_in_the_encoding(report, encoding):
    text = plain(report, encoding=encoding)
    assert "->" in text or not report.tables
    text.encode("ascii" if encoding == "no-such-encoding" else encoding)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_pipe_gets_plain_text_in_its_encoding(encoding):
    program = "from tests.reports.examples import EXAMPLES\nfor r in EXAMPLES.values(): print(r)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONIOENCODING": encoding,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "COLUMNS": "80",
        },
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode(encoding)
    assert text.count("MiniGPT: tied, healthy") == 3
    assert "\x1b" not in text
    assert ("→" in text) == (encoding == "utf-8")


def test_colour_follows_the_terminal_and_the_users_wish(monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in to_text(HEALTHY, width=80)
    assert "\x1b[" not in str(HEALTHY)  # a string may go anywhere
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in to_text(HEALTHY, width=80)


def test_lines_of_a_fix_stay_whole_where_no_width_was_asked_for(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    line = "report = tiebeam.initialize(model, inputs)"
    assert f"    {line}\n" in str(UNHEALTHY)
    assert line not in plain(UNHEALTHY, 30)


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (HEALTHY, "MiniGPT: tied, healthy"),
        (UNHEALTHY, "MiniGPT: tied, 3 findings (1 error, 1 warning, 1 info)"),
        (UNTIED, "Untied: not tied, healthy"),
        (UNKNOWN, "Odd: tie unknown, healthy"),
        (EMPTY, "Mlp: no vocabulary table seen, nothing to judge (1 info)"),
        (EXAMPLES["meta"], "Big: tied, structure healthy, values not seen"),
        (replace(UNTIED, tables=UNTIED.tables[:1]), "Untied: no readout seen, tie not judged"),
        (replace(UNTIED, tables=UNTIED.tables[1:]), "Untied: no lookup seen, tie not judged"),
        (
            replace(UNHEALTHY, tables=UNTIED.tables[:1]),
            "MiniGPT: no readout seen, 3 findings (1 error, 1 warning, 1 info)",
        ),
        (EXAMPLES["cut"], "MiniGPT: not tied (cut), healthy"),
        (
            replace(HEALTHY, tables=(TIED, replace(TIED, state="aliased"))),
            "MiniGPT: tied (aliased, 2 tables), healthy",
        ),
        (replace(UNTIED, tables=(TIED, *UNTIED.tables)), "Untied: tied (1 of 3 tables), healthy"),
    ],
)
def test_the_first_line_is_the_verdict(report, verdict):
    assert plain(report).splitlines()[0] == verdict


def test_findings_stand_from_error_to_info_each_with_its_fix():
    text = plain(UNHEALTHY)
    heads = [line for line in text.splitlines() if line.startswith(("error ", "warning ", "info "))]
    assert heads == [
        "error init-scale at transformer.wte.weight",
        "warning two-copies",
        "info own-token at transformer.wte.weight",
    ]
    assert "    report = tiebeam.initialize(model, inputs)\n    report.assert_healthy()\n" in text
    assert "  hint: Call tie.\n" in text


def test_the_flow_runs_from_ids_through_the_table_twice_to_logits():
    assert row(plain(HEALTHY), "flow") == (
        "ids → table (50,257 × 768) std 0.03608 → × 1 → network → norm, hidden rms 1 → table → × 1 → logits"
    )


def test_the_flow_of_a_table_with_one_role_has_that_role_alone():
    lookup, readout = plain(UNTIED).split("table model.embed_tokens.weight")[1].split("table lm_head.weight")
    assert row(lookup, "flow") == "ids → table (300 × 64) std 0.02 → × 8 → norm → network"
    assert row(readout, "flow") == (
        "network → hidden rms 2 → table (300 × 64) std 0.125 → × -0.5 → + bias → soft cap 30 → logits"
    )


def test_a_line_of_the_flow_breaks_at_an_arrow():
    flow = plain(HEALTHY, 40).split("  flow: ")[1].split("  lookup: ")[0]
    assert [line.strip()[0] for line in flow.splitlines()[1:]] == ["→"] * (len(flow.splitlines()) - 1)
    assert len(flow.splitlines()) > 2


def test_an_unknown_value_is_shown_with_its_reason_and_the_reason_is_not_repeated():
    text = plain(UNKNOWN)
    assert row(text, "state") == "unknown (a tie is declared, and there are no values to compare)"
    assert row(text, "lookup factor") == "unknown (a buffer on meta has no value)"
    assert row(text, "readout factor").startswith("unknown (it comes from the inputs: 2.828 in one pass")
    assert row(text, "target std") == "unknown (it follows from the readout factor), for unit-variance logits"
    assert row(text, "note") == "a remark about nothing in particular"
    assert " ".join(text.split()).count("a buffer on meta has no value") == 1


def test_on_meta_the_std_is_unknown_and_the_own_logit_has_bounds():
    text = plain(META)
    assert "on meta: shapes without values" in text
    assert row(text, "std now") == "unknown (no values on meta)"
    assert row(text, "predicted own logit") == "0 to 27.71 (for kappa from 0 to 1)"
    assert row(text, "predicted initial loss").startswith("11.32 to 27.71 (for kappa from 0 to 1), against ln V")
    assert row(text, "mode") == "analytic, seed 0, plan alone: nothing was written"


def test_what_initialisation_did_is_told_from_before_to_after():
    text = plain(EXAMPLES["initialised"])
    assert row(text, "mode") == "empirical, 8 measured rounds, seed 7, not settled within 2 %"
    assert row(text, "std") == "1 before, 0.03608 after"
    assert row(text, "logit std") == "1 predicted, 1.09 measured"
    assert text.endswith("note: inputs were made: token ids (1, 8)")


def test_a_lookup_alone_has_no_line_on_logits_it_does_not_make():
    lookup = TableInit("wte", "analytic", 0.02, 1.0, predicted_logit_std=None, measured_logit_std=None)
    text = plain(replace(EMPTY, init=(lookup,)))
    assert row(text, "std") == "0.02 before, 1 after"
    assert "logit std" not in text
    measured = plain(replace(EMPTY, init=(replace(lookup, measured_logit_std=0.9),)))
    assert row(measured, "logit std") == "unknown predicted, 0.9 measured"


def test_of_many_names_six_are_shown_and_the_others_counted():
    names = row(plain(MANY_NAMES), "names")
    assert names.count("model.stage") == 6
    assert names.endswith("and 34 more")
