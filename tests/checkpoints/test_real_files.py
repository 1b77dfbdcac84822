"""What transformers writes of real architectures, tied and untied: the verdict is the live model's own."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tests.checkpoints.tiny import TINY, captioner, tiny

from tiebeam.checkpoints import inspect

pytestmark = [pytest.mark.slow, pytest.mark.wide, pytest.mark.filterwarnings("ignore")]
NAMES = [n for n in TINY if n != "T5EncoderModel"]
SAVED_AS = {"lm_head.weight": "embed_out.weight"}  # GPT-NeoX's files keep the name that the class once had


def ends(model: Any) -> tuple[Any, Any]:
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_transformers_is_judged_as_its_model_is(name: str, tie: bool, tmp_path: Path) -> None:
    model = tiny(name, tie_word_embeddings=tie)
    table, readout = ends(model)
    model.save_pretrained(tmp_path)
    found = inspect(tmp_path)
    assert found.effective is (table is readout)
    assert found.state == ("omitted" if table is readout else "different")
    held = dict(model.named_parameters(remove_duplicate=False))
    assert found.table is not None
    rows = held[found.table]
    assert tuple(rows.shape) == tuple(table.shape)
    if table is readout:
        assert rows is table
        found.assert_healthy()
    else:
        names = {n for n, p in held.items() if p is readout}
        assert found.readout in names | {SAVED_AS.get(n, n) for n in names}
    assert found.elements == sum(a.size for a in load_file(tmp_path / "model.safetensors").values())


def test_a_live_config_can_be_given(tmp_path: Path) -> None:
    model = tiny("GPT2LMHeadModel")
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    assert inspect(tmp_path).state == "no-readout"
    found = inspect(tmp_path, model.config)
    assert (found.state, found.effective, found.vocab) == ("omitted", True, model.config.vocab_size)
    whole = inspect(tmp_path, captioner().config)
    assert whole.effective is True


def test_an_encoder_alone_is_a_backbone(tmp_path: Path) -> None:
    tiny("T5EncoderModel").save_pretrained(tmp_path)
    found = inspect(tmp_path)
    assert (found.table, found.readout, found.state) == ("shared.weight", None, "omitted")
    found.assert_healthy()


def test_the_scope_of_the_decoder_counts_in_a_captioner(tmp_path: Path) -> None:
    model = captioner()
    model.save_pretrained(tmp_path)
    found = inspect(tmp_path)
    table = model.decoder.get_input_embeddings().weight
    assert found.effective is (model.decoder.get_output_embeddings().weight is table)
    assert found.table == "decoder.bert.embeddings.word_embeddings.weight"
    assert found.state == "omitted"
    found.assert_healthy()
