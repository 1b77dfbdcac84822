"""A word on the command line becomes a model, or an error that says what to write instead."""

from pathlib import Path

import pytest
import torch

from tiebeam.checkpoints.near import near
from tiebeam.cli.target import Target
from tiebeam.cli.targets import resolve
from tiebeam.errors import TargetError


def test_a_function_a_class_a_partial_and_a_model_are_all_targets(models: Path) -> None:
    for name, vocab in (("build", 300), ("TiedLM", 300), ("partly", 40), ("ready", 300)):
        target = resolve(f"lm:{name}")
        assert target.model.table.weight.shape[0] == vocab
        assert (target.inputs, target.weights) == (None, "code")


def test_a_function_may_return_inputs_with_the_model(models: Path) -> None:
    target = resolve("lm:build_with_inputs")
    assert target.inputs.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_target_may_lie_inside_a_package_and_a_class(models: Path) -> None:
    (models / "package").mkdir()
    code = "import lm\nclass Zoo:\n    @staticmethod\n    def small():\n        return lm.TiedLM(50, 8)\n"
    (models / "package" / "zoo.py").write_text(code)
    assert resolve("package.zoo:Zoo.small").model.table.weight.shape == (50, 8)


def test_one_seed_gives_equal_weights_and_leaves_the_generator_as_it_was(models: Path) -> None:
    resolve("lm:build")  # imports torch
    before = torch.get_rng_state()
    tables = [resolve("lm:build", seed=seed).model.table.weight for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert torch.equal(before, torch.get_rng_state())


def test_meta_builds_without_memory_but_keeps_numbers(models: Path) -> None:
    model = resolve("lm:scaled", meta=True).model
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert model.factor.item() == 8.0
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "the target is empty"),
        ("./nowhere", "there is no file or folder './nowhere'"),
        ("org/name", "Hint: for a repository on the Hugging Face hub write hf:org/name"),
        ("lm.py:build", "Hint: name the module rather than the file: lm:build"),
        ("weights.bin", "there is no file or folder 'weights.bin'"),
        ("nosuchmodule:build", "the module 'nosuchmodule' cannot be imported"),
        ("nosuchmodule:build", "got: ModuleNotFoundError: No module named 'nosuchmodule'\nHint: the current folder"),
        ("lmm:build", "Hint: did you mean 'lm'?"),
        ("lm", "Hint: lm.py is a module: name what builds the model in it, lm:build"),
        ("lm:biuld", "Hint: did you mean 'build'"),
        ("lm:NeedsVocab", "a callable that must have vocab"),
        ("lm:nothing", "got: None"),
        ("lm:quadruple", "got: a tuple of 4"),
        ("lm:leaves", "got: SystemExit: 3"),
        ("lm:alarmed", "got: Alarm: on fire"),
    ],
)
def test_what_is_no_target_is_refused_with_a_way_on(models: Path, target: str, message: str) -> None:
    with pytest.raises(TargetError) as refused:
        resolve(target)
    assert message in str(refused.value)


def test_the_error_of_the_users_code_is_chained_and_its_line_named(models: Path) -> None:
    with pytest.raises(TargetError, match=r"got: RuntimeError: no disk of weights here at .*lm\.py:\d+") as refused:
        resolve("lm:broken")
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_an_interruption_is_not_taken_for_an_error(models: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        resolve("lm:interrupted")


def test_a_model_that_is_there_already_cannot_be_built_on_meta(models: Path) -> None:
    with pytest.raises(TargetError, match="--meta comes too late"):
        resolve("lm:ready", meta=True)


def test_a_class_whose_tied_keys_are_a_list_is_told_the_mapping(models: Path) -> None:
    code = (
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "from torch import nn\n"
        "class Cfg(PretrainedConfig):\n    model_type = 'listed'\n"
        "class Listed(PreTrainedModel):\n"
        "    config_class = Cfg\n    _tied_weights_keys = ['head.weight']\n"
        "    def __init__(self, c):\n"
        "        super().__init__(c)\n"
        "        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)\n"
        "        self.post_init()\n"
        "    def get_input_embeddings(self):\n        return self.embed\n"
        "def build():\n    return Listed(Cfg(tie_word_embeddings=True))\n"
    )
    (models / "listed.py").write_text(code)
    with pytest.raises(TargetError, match=r"Listed\._tied_weights_keys = \{'head\.weight': '<input embedding>"):
        resolve("listed:build")


def test_near_names_are_offered_whatever_their_case() -> None:
    assert near("GPT-2", ["gpt2", "llama"]) == "did you mean 'gpt2'?"
    assert near("zzz", ["gpt2"]) == ""


def test_a_target_is_data() -> None:
    assert Target("model") == Target("model", None, "code", ())
