"""Headers changed where it hurts: no crash, no hang, bounded memory, and what is wrong is refused."""

import tracemalloc
from pathlib import Path

import pytest
from tests.checkpoints.mutations import (
    MORE,
    MUTATIONS,
    TIMES_HEADER,
    Mutant,
    memory,
    mutants,
    through_a_file,
    verdict,
    wrong,
)

pytestmark = pytest.mark.slow

COUNT = 2000


def test_two_thousand_mutants_are_taken_as_they_should_be() -> None:
    failures = [(m.how, said, m.header[:200]) for m in mutants(COUNT) if (said := wrong(m))]
    assert not failures


def test_the_mutants_are_of_every_kind_and_some_are_sound() -> None:
    made = list(mutants(COUNT))
    assert {m.how for m in made} == {change.__name__ for change in MUTATIONS}
    found = [verdict(m) for m in made]
    assert 0.03 < found.count("read") / COUNT < 0.5


def test_the_same_through_files(tmp_path: Path) -> None:
    for mutant in mutants(200, seed=1):
        assert through_a_file(mutant, tmp_path / "m.safetensors") == verdict(mutant)


def test_mutants_take_little_memory() -> None:
    for mutant in mutants(120, seed=2):
        assert memory(mutant) <= TIMES_HEADER * len(mutant.header) + MORE


def _many(entry: bytes, size: int) -> bytes:
    """A header of about so many bytes, of one entry over and over, numbered where it has room for it."""
    count = size // len(entry)
    return b"{" + b",".join(entry.replace(b"#", b"%x" % i) for i in range(count)) + b"}"


ENTRIES = {
    "small tensors": b'"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
    "scalars": b'"#":{"dtype":"F4","shape":[0,1],"data_offsets":[0,0]}',
    "other order": b'"#":{"shape":[0],"dtype":"U8","data_offsets":[0,0]}',
    "many shapes": b'"#":{"dtype":"U8","shape":[0,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,0]}',
    "lists": b'"#":[[],[],[],[],[],[],[],[],[],[]]',
    "objects": b'"#":{"a":{},"b":{}}',
    "strings": b'"#":"a"',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_a_large_header_takes_at_most_sixteen_times_its_size(name: str) -> None:
    header = _many(ENTRIES[name], 2 * 2**20)
    assert memory(Mutant(name, header, None)) <= TIMES_HEADER * len(header) + MORE


def test_large_metadata_takes_no_more_than_its_bound() -> None:
    header = b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(500_000)) + b"}}"
    assert memory(Mutant("metadata", header, True)) <= TIMES_HEADER * len(header) + MORE
    assert verdict(Mutant("metadata", header, True)) == "refused"


def test_the_check_itself_notices_what_is_read_though_it_must_not_be() -> None:
    sound = b'{"a":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}}'
    assert wrong(Mutant("sound", sound, True)) == "it was read"
    assert wrong(Mutant("sound", sound, False)) == ""
    tracemalloc.start()
    held = [object() for _ in range(10_000)]
    assert tracemalloc.get_traced_memory()[1] > len(held)
    tracemalloc.stop()
