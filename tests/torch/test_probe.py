"""The trace against the probe against the zoo's truth, on thirty architectures."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.models.kit import Base, ids, load

import tiebeam
from tiebeam.testing import Probed, probe_table

ARCHITECTURES = """
    causal/llama causal/gpt2 causal/gemma2 causal/granite causal/cohere causal/opt[factorised] causal/mpt
    causal/mpt[logit_scale] causal/bloom causal/falcon causal/gpt_neox causal/qwen2
    causal/qwen3_5_moe_text
    causal/mamba causal/biogpt causal/doge causal/phi3 causal/vaultgemma causal/gemma3_text[cap]
    causal/zaya[bias]
    masked/bert masked/albert[factorised] masked/distilbert masked/roberta masked/bart[scaled]
    seq2seq/t5 seq2seq/t5[v1.1] seq2seq/marian seq2seq/plbart speech/whisper
""".split()


@cache
def truths(path: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads((path / "zoo" / "truth.json").read_text())}


@pytest.fixture(scope="module")
def zoo(shared: Path) -> Any:
    """The builder of tiny architectures, loaded from its file."""
    spec = importlib.util.spec_from_file_location("architectures", shared / "zoo" / "zoo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def agree(got: float | None, want: float | None) -> bool:
    return (got is None and want is None) or got == pytest.approx(want, rel=2e-3)


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_probe_and_trace_and_truth_agree(name: str, shared: Path, zoo: Any) -> None:
    row = truths(shared)[name]
    _, model, inputs, _, _ = zoo.build(name)
    path = row["shared_by"][0][0].split(" ")[0]
    probed = probe_table(model, inputs, path)
    assert probed.tied == row["tied"]
    assert agree(probed.lookup_factor, row["lookup_factor"]), probed
    assert agree(probed.readout_factor, row["logit_factor"]), probed
    assert agree(probed.soft_cap, row["softcap"]), probed
    assert (probed.readout_bias, probed.norm_after_lookup) == (bool(row["bias"]), row["norm_after_lookup"])
    table = next(t for t in tiebeam.inspect(model, inputs).tables if path in t.names)
    traced = Probed(
        lookups=sum(r.count for r in table.lookups),
        readouts=sum(r.count for r in table.readouts),
        tied=table.tied,
        lookup_factor=table.lookup_factor,
        readout_factor=table.readout_factor,
        soft_cap=table.soft_cap,
        readout_bias=table.readout_bias,
        norm_after_lookup=table.norm_after_lookup,
    )
    assert agree(traced.lookup_factor, probed.lookup_factor), (traced, probed)
    assert agree(traced.readout_factor, probed.readout_factor), (traced, probed)
    assert agree(traced.soft_cap, probed.soft_cap), (traced, probed)
    assert (traced.tied, traced.readout_bias, traced.norm_after_lookup, traced.readouts) == (
        probed.tied, probed.readout_bias, probed.norm_after_lookup, probed.readouts,
    )  # fmt: skip


def test_the_probe_shares_no_code_with_the_trace() -> None:
    """What it imports of tiebeam is the errors, and itself."""
    folder = Path(probe_table.__code__.co_filename).parent
    lines = [line for name in ("probe.py", "_replay.py") for line in (folder / name).read_text().splitlines()]
    imported = {line.split()[1] for line in lines if line.strip().startswith("from tiebeam")}
    assert imported == {"tiebeam.errors", "tiebeam.testing._replay"}


def test_the_probe_notices_a_wrong_factor() -> None:
    """The probe can fail: another constant in the model is another number measured."""
    case = load()["factors"]["PythonNumber"]()
    assert probe_table(case.model, case.inputs, "table").lookup_factor == pytest.approx(3.0, rel=1e-4)
    type(case.model).rows, kept = (lambda _, x: x * 3.01), type(case.model).rows
    try:
        assert probe_table(case.model, case.inputs, "table").lookup_factor == pytest.approx(3.01, rel=1e-4)
    finally:
        type(case.model).rows = kept


def test_the_probe_leaves_the_model_as_it_was() -> None:
    model = Base()
    before = {n: p.clone() for n, p in model.named_parameters()}
    probe_table(model, ids(), "table")
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_the_probe_refuses_what_it_cannot_measure() -> None:
    model = Base()
    with torch.no_grad():
        model.table[0, 0] = float("nan")
    with pytest.raises(tiebeam.RangeError, match="finite"):
        probe_table(model, ids(), "table")
    with pytest.raises(tiebeam.InputError, match="refused the inputs"):
        probe_table(Base(), (ids(), ids()), "table")
