import unicodedata

import hypothesis.strategies as st
from hypothesis import given
from tests.reports.examples import HOSTILE

from tiebeam.reports.strings import Code, joined, name, program, spans, visible


@given(st.text(st.characters()))
def test_what_would_act_is_spelt_out_and_everything_else_stays(text):
    shown = visible(text)
    assert not any(unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp") for c in shown)
    assert visible(shown) == shown
    shown.encode("utf-8")
    if text.isascii() and text.isprintable():
        assert shown == text


def test_escape_sequences_and_reordering_are_seen_rather_than_obeyed():
    shown = visible(HOSTILE)
    assert "\\x1b[31m\\u202e" in shown
    assert "\\r\\n# " in shown


def test_backticks_mark_code_and_a_lone_one_stays_itself():
    assert spans("use `a.b`, not `c") == ("use ", "a.b", ", not `c")
    assert [isinstance(s, Code) for s in spans("use `a.b` now")] == [False, True, False]


def test_a_message_is_one_paragraph_and_a_program_keeps_its_lines():
    assert spans("one\n  two") == ("one two",)
    assert program("\na = 1\r\n\tb = 2\n") == "a = 1\n\tb = 2"


def test_an_empty_name_can_be_seen():
    assert name("") == '""'
    assert joined(["a", "b"]) == ("a", ", ", "b")
