"""What an advice says is arithmetic and one rule; its wording is the same in every form."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiebeam
from tiebeam.core.advising.advice import BITS, LITTLE, WORTH, Counted, Setting, advise
from tiebeam.core.advising.evidence import EVIDENCE, PRACTICE
from tiebeam.errors import RangeError, TargetError
from tiebeam.reports.advice import schema

SIZES = st.integers(1, 10**6)
GPT2 = Counted(50257, 768, 85842432, now="tied", layers=12)


@given(vocab=SIZES, width=SIZES, body=st.integers(0, 10**12))
def test_tying_takes_exactly_one_table_off_and_never_more_than_half(vocab: int, width: int, body: int) -> None:
    found = advise("m", Counted(vocab, width, body))
    assert found.tied is not None
    assert found.untied is not None
    assert found.share is not None
    assert found.untied - found.tied == found.saved == vocab * width
    assert 0 < found.share <= 0.5
    assert found.tables["untied"] == pytest.approx(2 * found.share)
    for bits, held in zip(BITS.values(), found.bytes.values(), strict=True):
        assert held.saved * 8 >= vocab * width * bits > (held.saved - 1) * 8


@given(vocab=SIZES, width=SIZES, body=st.integers(1, 10**12))
def test_the_saving_falls_as_the_model_grows(vocab: int, width: int, body: int) -> None:
    curve = advise("m", Counted(vocab, 64 * width, body)).curve
    shares = [p.share for p in curve]
    assert shares == sorted(shares, reverse=True)
    assert [p.growth for p in curve] == sorted(p.growth for p in curve)
    [here] = [p for p in curve if p.growth == 1]
    assert (here.body, here.saved) == (body, vocab * 64 * width)


def test_the_readout_costs_its_product_tied_or_not() -> None:
    tied, untied = (advise("m", Counted(50257, 768, 85842432, now=now)) for now in ("tied", "untied"))
    assert tied.flops == untied.flops
    assert tied.flops.readout == 2 * 50257 * 768
    assert tied.flops.readout_training == 3 * tied.flops.readout
    assert tied.flops.lookup == 0
    assert tied.flops.readout_share == pytest.approx(38597376 / 124439808)
    assert tied.memory.logits == 8 * 1024 * 50257 * 4
    assert tied.memory.logits_training == 2 * tied.memory.logits
    half = advise("m", GPT2, Setting(dtype="bfloat16")).memory
    assert half.logits_training == 4 * half.logits  # two copies, and one of twice the size for the loss
    assert half.optimizer == tied.memory.optimizer  # states stay in float32
    assert tied.memory.optimizer.saved == 8 * 38597376
    assert advise("m", GPT2, Setting(optimizer="sgd")).memory.optimizer.saved == 0


def test_the_verdict_follows_the_share_and_says_how_sure_it_is() -> None:
    def at(share: float, table: int = 1000) -> tuple[str, str]:
        found = advise("m", Counted(table, 1, round(table / share) - 2 * table))
        return found.verdict, found.sure.partition(":")[0]

    assert at(WORTH * 1.01) == ("tie", "fair")
    assert at(WORTH * 1.01, 10**9) == ("tie", "the saving is certain; that quality does not pay for it is not")
    assert at(WORTH * 0.99)[0] == at(LITTLE * 1.01)[0] == "either"
    assert at(LITTLE * 0.99)[0] == "untie"


def test_what_cannot_be_tied_or_is_not_known_is_said() -> None:
    lone = advise("m", Counted(100, 8, 1000, now="no-readout"))
    assert (lone.verdict, lone.tied, lone.untied, lone.saved, lone.curve) == ("nothing to tie", 1800, 1800, 0, ())
    apart = advise("m", Counted(100, 8, 1000, now="untied", other=880))
    assert (apart.verdict, apart.tied, apart.untied, apart.saved) == ("cannot tie", None, 1000 + 800 + 880, 0)
    unknown = advise("m", Counted(100, 8, None))
    assert (unknown.tied, unknown.untied, unknown.saved, unknown.share) == (None, None, 800, None)
    assert "not known" in unknown.reason
    assert "unknown tied, unknown untied, 800 saved" in str(unknown)
    sparse = advise("m", Counted(100, 8, 1000, sparse=True)).flops
    assert (sparse.model, sparse.readout_share) == (None, None)


def test_every_row_of_evidence_says_for_what_from_where_and_on_what() -> None:
    assert all(e.claim and e.scale and e.source for e in EVIDENCE)
    assert {e.speaks for e in EVIDENCE} == {"for", "against", "both ways"}
    assert [p.least for p in PRACTICE] == [WORTH, LITTLE, 0.0]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "got: none"),
        ({"vocab": 10, "width": 4}, "one of layers and body"),
        ({"vocab": 10, "width": 4, "layers": 1, "body": 1}, "one of layers and body"),
        ({"vocab": 0, "width": 4, "layers": 1}, "vocab of a model"),
        ({"vocab": 10**19, "width": 4, "layers": 1}, "vocab of a model"),
        ({"vocab": 10, "width": 4, "layers": -1}, "layers to advise on"),
        ({"vocab": 10, "width": 4, "body": -1}, "body of a model"),
        ({"vocab": 10, "width": 4, "layers": 1, "batch": 0}, "batch to count for"),
        ({"vocab": 10, "width": 4, "layers": 1, "dtype": "int3"}, "expected: float32, float16"),
        ({"vocab": 10, "width": 4, "layers": 1, "optimizer": "muon"}, "optimizer to count for"),
    ],
)
def test_sizes_that_are_none_are_refused(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RangeError, match=complaint):
        tiebeam.advise(**asked)


def test_sizes_and_a_target_are_not_both_taken() -> None:
    with pytest.raises(RangeError, match="a target, or sizes alone"):
        tiebeam.advise({"vocab_size": 10, "hidden_size": 4}, layers=2)
    with pytest.raises(TargetError, match="is no config"):
        tiebeam.advise(5)


def test_the_json_names_what_a_program_looks_for() -> None:
    found = json.loads(advise("gpt2", GPT2).to_json())
    assert (found["tied"], found["untied"], found["saved"]) == (124439808, 163037184, 38597376)
    assert found["share"] == pytest.approx(0.2367, abs=1e-4)
    assert found["curve"][2]["layers"] == 12
    assert (found["now"], found["how"], found["verdict"]) == ("tied", "given", "tie")
    assert {e["source"] for e in found["evidence"]} == {e.source for e in EVIDENCE}
    assert advise("m", GPT2, notes=("x",)).to_dict()["notes"] == ["x"]


@pytest.mark.parametrize(
    "counted",
    [
        GPT2,
        Counted(100, 8, None),
        Counted(100, 8, 1000, now="no-readout"),
        Counted(100, 8, 1000, now="untied", how="built", other=880, sparse=True, notes=("n",)),
        Counted(100, 8, 0, how="formula", formula="f"),
    ],
)
def test_the_json_is_as_its_schema_says_and_the_schema_allows_nothing_else(counted: Counted) -> None:
    found = json.loads(advise("m", counted).to_json())
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(found)
    for spoilt in ({**found, "more": 1}, {**found, "tied": -1}, {k: v for k, v in found.items() if k != "share"}):
        assert not validator.is_valid(spoilt)


def test_every_form_gives_the_same_figures_and_escapes_names() -> None:
    said = advise("<b>gpt2|\x1b[31m", GPT2)
    forms = [str(said), said.to_markdown(), said.to_html()]
    for form in forms:
        for figure in ("124,439,808", "163,037,184", "38,597,376", "23.7 %", "474.7 MiB"):
            assert figure in form
        assert "\x1b" not in form
    assert "<b>" not in forms[2]
    assert re.search(r"<svg.*share against width", forms[2], re.DOTALL | re.IGNORECASE)
    assert "\\<b\\>" in forms[1]


def test_a_narrow_terminal_gets_lines_of_its_width() -> None:
    from tiebeam.reports.advice import to_text

    text = to_text(advise("gpt2", GPT2), width=40, color=False)
    assert max(map(len, text.splitlines())) <= 40
    assert "163,037,184" in text
