"""A config is read as data: bounded, and without running any of its code."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.checkpoints.scopes import (
    ABSENT,
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_SCOPES,
    fields,
    known_names,
    read,
    walk,
)

NAMES = st.text("abc_", min_size=1, max_size=4)
CONFIGS = st.recursive(
    st.dictionaries(NAMES, st.integers() | st.none() | st.lists(st.integers(), max_size=3), max_size=4),
    lambda inner: st.dictionaries(NAMES, inner | st.integers(), max_size=4),
    max_leaves=12,
)


class Trap:
    """Every way of running its code raises."""

    attribute_map: ClassVar[dict[str, str]] = {"hidden": "width"}
    default = 7

    def __init__(self) -> None:
        self.__dict__["width"] = 16

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def to_dict(self) -> dict[str, Any]:
        raise AssertionError("to_dict ran")

    @property
    def vocab_size(self) -> int:
        raise AssertionError("a property ran")


class Slotted:
    __slots__ = ("empty", "vocab_size")

    def __init__(self) -> None:
        self.vocab_size = 64


@dataclass
class Plain:
    vocab_size: int = 64


@pytest.mark.parametrize("config", [{"vocab_size": 64}, SimpleNamespace(vocab_size=64), Plain(), Slotted()])
def test_mappings_objects_dataclasses_and_slots_are_read_alike(config: object) -> None:
    assert read(config, "vocab_size") == 64
    assert fields(config) == {"vocab_size": 64}


def test_no_code_of_a_config_runs() -> None:
    trap = Trap()
    assert read(trap, "hidden") == 16
    assert read(trap, "default") == 7
    assert read(trap, "vocab_size") is ABSENT
    assert read(trap, "anything") is ABSENT
    assert [path for path, _ in walk({"text": trap})] == ["", "text"]


def test_none_is_a_value_and_not_an_absence() -> None:
    assert read({"flag": None}, "flag") is None
    assert read({}, "flag") is ABSENT
    assert not ABSENT


def test_a_config_that_holds_itself_is_walked_once() -> None:
    config: dict[str, Any] = {"inner": {}}
    config["inner"]["outer"] = config
    assert [path for path, _ in walk(config)] == ["", "inner"]


def test_depth_breadth_and_fields_are_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"a": deep}
    assert len(list(walk(deep))) == MAX_DEPTH
    assert len(list(walk({str(i): {"x": 1} for i in range(500)}))) == MAX_SCOPES
    assert len(fields({str(i): i for i in range(MAX_FIELDS + 5)})) == MAX_FIELDS


def test_functions_classes_and_numbers_are_no_scopes() -> None:
    assert [path for path, _ in walk({"f": print, "c": Plain, "n": 3, "s": "text", "l": [1]})] == [""]


def test_the_names_that_a_class_knows_are_its_fields_and_arguments() -> None:
    assert "vocab_size" in known_names(Plain())
    assert known_names({"vocab_size": 1}) == frozenset()


@given(CONFIGS)
def test_every_path_leads_to_its_scope(config: dict[str, Any]) -> None:
    for path, scope in walk(config):
        found: Any = config
        for name in filter(None, path.split(".")):
            found = found[name]
        assert found is scope
