"""The verdict on what a file holds and what its config says: every state, and what each asks of the values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.writing import READOUT, TABLE, Array, bfloat16, folder, safetensors, sharded, table

from tiebeam.checkpoints import inspect
from tiebeam.errors import CheckpointError, UnhealthyTie

LLAMA = {"model_type": "llama", "vocab_size": 64}
TIED, UNTIED = {**LLAMA, "tie_word_embeddings": True}, {**LLAMA, "tie_word_embeddings": False}
E = table()
BODY = {"model.layers.0.mlp.up_proj.weight": np.ones((8, 8), np.float32)}


def state(tmp_path: Path, tensors: dict[str, Array], config: dict[str, Any] | None = None) -> str:
    return inspect(folder(tmp_path / "m", {**tensors, **BODY}, config)).state


@pytest.mark.parametrize(
    ("readout", "expected"),
    [
        (E.copy(), "equal"),
        (E.astype(np.float16), "equal-after-cast"),
        (E.astype(np.float64), "equal-after-cast"),
        (E.T.copy(), "transposed"),
        (E[:60], "sliced"),
        (np.concatenate([E, table(8, seed=1)]), "sliced"),
        (E + np.float32(1e-3), "different"),
        (table(seed=2), "different"),
        (table(seed=2).T.copy(), "different"),
        (table(60, seed=2), "different"),
        (table(64, 16, seed=2), "different"),
    ],
    ids="equal half double transposed shorter longer near other other-transposed other-shorter wider".split(),
)
def test_two_matrices_are_told_apart_by_their_values(tmp_path: Path, readout: Array, expected: str) -> None:
    found = inspect(folder(tmp_path / "m", {TABLE: E, READOUT: readout, **BODY}, UNTIED))
    assert (found.state, found.table, found.readout) == (expected, TABLE, READOUT)


def test_a_matrix_rounded_to_bfloat16_is_equal_after_a_cast(tmp_path: Path) -> None:
    assert state(tmp_path, {TABLE: E, f"{READOUT}@bf16": bfloat16(E)}) == "equal-after-cast"
    assert state(tmp_path, {TABLE: E, f"{READOUT}@bf16": bfloat16(E + np.float32(0.1))}) == "different"


def test_one_differing_bit_in_the_last_row_is_seen(tmp_path: Path) -> None:
    big = table(4096, 96)
    other = big.copy()
    other.view(np.uint32)[-1, -1] ^= 1
    assert state(tmp_path, {TABLE: big, READOUT: big.copy()}) == "equal"
    assert state(tmp_path, {TABLE: big, READOUT: other}) == "different"


def test_bytes_that_are_no_multiple_of_eight_are_compared_to_the_last(tmp_path: Path) -> None:
    odd = np.arange(21 * 3, dtype=np.uint8).reshape(21, 3)
    other = odd.copy()
    other[-1, -1] ^= 1
    assert state(tmp_path, {TABLE: odd, READOUT: odd.copy()}) == "equal"
    assert state(tmp_path, {TABLE: odd, READOUT: other}) == "different"


def test_a_square_table_and_its_transpose_are_one(tmp_path: Path) -> None:
    square = table(16, 16)
    assert state(tmp_path, {TABLE: square, READOUT: square.T.copy()}) == "transposed"


def test_nan_in_both_is_equal_bits(tmp_path: Path) -> None:
    holes = E.copy()
    holes[3] = np.nan
    assert state(tmp_path, {TABLE: holes, READOUT: holes.copy()}) == "equal"


@pytest.mark.parametrize("cast", [False, True])
def test_numbers_that_are_equal_in_other_bits_are_equal(tmp_path: Path, cast: bool) -> None:
    """NaN has many patterns of bits and zero two signs; a cast and some kernels choose others."""
    odd = E.copy()
    odd[3], odd[4] = np.nan, 0.0
    other = odd.copy()
    other[3] *= -1
    if cast:
        assert state(tmp_path, {TABLE: odd, READOUT: other.astype(np.float16)}) == "equal-after-cast"
        return
    other[4] = -0.0
    found = inspect(folder(tmp_path / "m", {TABLE: odd, READOUT: other}, TIED))
    assert found.state == "equal-after-cast"
    assert any("signs of zero" in n for n in found.notes)


def test_nan_where_the_other_end_has_numbers_is_a_difference(tmp_path: Path) -> None:
    holes = E.copy()
    holes[3], holes[4, 0] = np.nan, np.inf
    gap = inspect(folder(tmp_path / "m", {TABLE: holes, READOUT: E}, TIED)).gap
    assert gap is not None
    assert (gap.rows_differing, gap.largest, gap.distance) == (2, np.inf, np.inf)


def test_ends_of_no_dimension_can_differ(tmp_path: Path) -> None:
    ends = {"embed_tokens.weight_q": np.ones((), np.float32), "lm_head.weight_q": np.zeros((), np.float32)}
    assert state(tmp_path, ends) == "different"


@pytest.mark.parametrize(
    ("config", "expected", "effective"),
    [
        (TIED, "omitted", True),
        (UNTIED, "no-readout", False),
        (LLAMA, "no-readout", False),
        ({"model_type": "gpt2"}, "omitted", True),
        ({"model_type": "t5", "tie_word_embeddings": False}, "omitted", True),
        ({"model_type": "never_heard_of"}, "no-readout", None),
        ({"model_type": "never_heard_of", "tie_word_embeddings": True}, "omitted", True),
        ({"weight_tying": True}, "omitted", True),
        ({"no-weight-tying": True}, "no-readout", False),
        (None, "no-readout", None),
    ],
)
def test_a_file_without_a_readout_is_judged_by_who_ties(
    tmp_path: Path, config: dict[str, Any] | None, expected: str, effective: bool | None
) -> None:
    found = inspect(folder(tmp_path / "m", {TABLE: E, **BODY}, config))
    assert (found.state, found.effective, found.readout) == (expected, effective, None)


def test_the_config_can_be_given_and_counts_before_the_one_beside_the_file(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {TABLE: E, **BODY}, UNTIED)
    assert inspect(path).state == "no-readout"
    assert inspect(path, TIED).state == "omitted"
    (tmp_path / "c.json").write_text('{"model_type": "gpt2"}')
    assert inspect(path / "model.safetensors", tmp_path / "c.json").effective is True


def test_a_file_of_layers_alone_has_no_table(tmp_path: Path) -> None:
    found = inspect(folder(tmp_path / "m", dict(BODY), TIED))
    assert (found.state, found.table) == ("no-table", None)


def test_a_table_that_no_name_tells_can_be_named_by_who_knows_it(tmp_path: Path) -> None:
    """Keras stores the variables of a subclassed model under the names of its attributes."""
    path = safetensors(tmp_path / "m.safetensors", {"d/vars/0": table(8, 8), "e/vars/0": table(300, 8)})
    [finding] = inspect(path).findings
    assert (finding.code, finding.severity) == ("no-table", "info")
    assert "--table NAME" in finding.hint
    assert "'e/vars/0', 300 x 8" in finding.hint
    assert inspect(path, table="e/vars/0").table == "e/vars/0"


def test_an_alias_in_the_metadata_is_read_back(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {TABLE: E, **BODY}, {READOUT: TABLE, "format": "pt"})
    found = inspect(path)
    assert found.state == "omitted"
    assert [f.code for f in found.findings] == ["alias-recorded"]


def test_the_readouts_name_may_be_the_one_that_was_kept(tmp_path: Path) -> None:
    """`safetensors.torch.save_model` keeps the name that sorts first."""
    path = safetensors(tmp_path / "m.safetensors", {READOUT: E, **BODY}, {TABLE: READOUT})
    assert (inspect(path).state, inspect(path).table) == ("omitted", READOUT)
    denied = inspect(path, UNTIED)
    assert "readout-missing" in {f.code for f in denied.findings if f.severity == "error"}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({TABLE: E, READOUT: table(seed=1)}, {"model.layers.1.w": "model.layers.0.w"}),
        ({TABLE: E}, {"model.layers.1.w": "model.layers.0.w"}),
        ({"shared.weight": E, READOUT: table(seed=1)}, {"encoder.embed_tokens.weight": "shared.weight"}),
    ],
)
def test_other_storage_that_is_shared_is_no_tie(tmp_path: Path, held: dict[str, Array], said: dict[str, str]) -> None:
    """An untied model with two layers of one weight was told that its file makes the two ends one."""
    path = safetensors(tmp_path / "m.safetensors", {**held, "model.layers.0.w": table(8, 8)}, said)
    found = inspect(path, {"model_type": "of_no_family", "tie_word_embeddings": False})
    assert found.state == ("different" if READOUT in held else "no-readout")
    assert {f.code for f in found.findings} == {"untied" if READOUT in held else "readout-missing"}


def test_an_index_alone_has_names_and_no_values(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a.safetensors": {TABLE: E}, "b.safetensors": {READOUT: E}}, TIED)
    assert inspect(path).state == "equal"
    for shard in path.glob("*.safetensors"):
        shard.unlink()
    found = inspect(path)
    assert (found.state, found.table, found.readout, found.nbytes) == ("unknown", TABLE, READOUT, 2 * E.nbytes)
    assert [f.code for f in found.findings] == ["tie-not-shown"]


def test_two_tables_that_fit_alike_are_named_and_neither_is_chosen(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"a.embed.weight": E, "b.embed.weight": table(seed=3), **BODY}, TIED)
    found = inspect(path)
    assert (found.state, found.table, found.readout) == ("unknown", None, None)
    assert [f.code for f in found.findings] == ["several-tables"]
    assert inspect(path, table="a.embed.weight", readout="b.embed.weight").state == "different"
    with pytest.raises(CheckpointError, match=r"holds no 'c\.embed\.weight'"):
        inspect(path, table="c.embed.weight")


def test_equal_integers_with_other_scales_are_different(tmp_path: Path) -> None:
    whole = np.arange(512, dtype=np.int8).reshape(64, 8)
    scales = np.ones(64, np.float32)
    same = {TABLE: whole, READOUT: whole.copy(), "model.embed_tokens.weight_scale": scales}
    assert state(tmp_path, {**same, "lm_head.weight_scale": scales.copy()}) == "equal"
    assert state(tmp_path, {**same, "lm_head.weight_scale": scales * 2}) == "different"
    assert state(tmp_path, same) == "different"


def test_a_quantised_end_beside_a_float_one_is_not_guessed(tmp_path: Path) -> None:
    packed = {"lm_head.qweight": np.ones((1, 64), np.int32), "lm_head.scales": np.ones((1, 64), np.float16)}
    found = inspect(folder(tmp_path / "m", {TABLE: E, **packed, **BODY}, TIED))
    assert (found.state, found.readout) == ("unknown", "lm_head.qweight")
    assert "quantised-end" in {f.code for f in found.findings}


def test_a_report_shows_itself_and_asserts(tmp_path: Path) -> None:
    found = inspect(folder(tmp_path / "m", {TABLE: E, READOUT: table(seed=1), **BODY}, TIED))
    assert "tied-file-differs" in str(found)
    assert "relative distance" in found.to_markdown()
    assert found.to_html().startswith("<!DOCTYPE html>")
    with pytest.raises(UnhealthyTie, match="tied-file-differs"):
        found.assert_healthy()
    found.assert_healthy(ignore=["tied-file-differs"])
    plain = found.to_dict()
    assert plain["state"] == "different"
    assert plain["declared"] is True
    assert plain["gap"]["rows"] == 64


def test_how_far_two_matrices_are_apart_is_measured(tmp_path: Path) -> None:
    other = E.copy()
    other[:16] += 0.5
    gap = inspect(folder(tmp_path / "m", {TABLE: E, READOUT: other, **BODY}, TIED)).gap
    assert gap is not None
    assert (gap.rows_differing, gap.rows_seen, gap.rows) == (16, 64, 64)
    assert gap.largest == pytest.approx(0.5, rel=1e-5)
    assert gap.distance == pytest.approx(np.linalg.norm(other - E) / np.linalg.norm(E), rel=1e-5)


def test_a_readout_of_another_width_says_that_it_can_be_no_tie(tmp_path: Path) -> None:
    found = inspect(folder(tmp_path / "m", {TABLE: E, READOUT: table(64, 16), **BODY}, TIED))
    assert found.state == "different"
    assert any("no one table" in n for n in found.notes)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"), ("transformer.wte.weight", 2)),
        (("gpt_neox.embed_in.weight", "embed_out.weight"), ("gpt_neox.embed_in.weight", 1)),
        (("word_embeddings.weight", "token_type_embeddings.weight", "cls.predictions.decoder.weight"), (None, 2)),
        (("params.token_embedder.embedding", "params.decoder.logits_dense.kernel"), (None, 1)),
        (("tok_embeddings.weight", "output.weight"), (None, 1)),
        (("model.language_model.embed_tokens.weight", "lm_head.weight"), (None, 1)),
        (("backbone.embeddings.weight", "lm_head.weight"), (None, 1)),
        (("decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "lm_head.weight"), (None, 2)),
        (("embed.W_E", "unembed.W_U"), (None, 1)),
    ],
)
def test_known_names_tell_the_roles(tmp_path: Path, names: tuple[str, ...], expected: tuple[str | None, int]) -> None:
    wanted, readout = expected
    tensors = {name: table(32 if "wpe" in name or "type" in name else 64, seed=i) for i, name in enumerate(names)}
    found = inspect(safetensors(tmp_path / "m.safetensors", tensors))
    assert (found.table, found.readout) == (wanted or names[0], names[readout])


def test_a_class_that_nobody_knows_has_no_readout_by_its_name_alone(tmp_path: Path) -> None:
    found = inspect(folder(tmp_path / "m", {TABLE: E, **BODY}, {"architectures": ["MyGPT"]}))
    [finding] = [f for f in found.findings if f.code == "backbone-only"]
    assert finding.message == "the file has no readout, and by its name the config's class, MyGPT, has none either"
