"""What a readout loss refuses, and that nothing was done before it did."""

import re

import pytest
import torch

from tiebeam.blocks.readout_loss.torch import operator
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.torch import TiedEmbedding, readout_loss

HIDDEN, TABLE, TARGETS = torch.ones(2, 3, 4), torch.ones(7, 4), torch.zeros(2, 3, dtype=torch.int64)


def at(value, *index):
    targets = TARGETS.clone()
    targets[index] = value
    return targets


def spoiled(t, value, *index):
    t = t.clone()
    t[index] = value
    return t


REFUSED = {
    "a target beyond the table": (
        (HIDDEN, TABLE, at(7, 1, 2)),
        {},
        InputError,
        "7 at index (1, 2)\n  expected: 0 to 6",
    ),
    "a negative target": ((HIDDEN, TABLE, at(-1, 0, 1)), {}, InputError, "-1 at index (0, 1)"),
    "several": ((HIDDEN, TABLE, TARGETS + 9), {}, InputError, "9 at index (0, 0), and 5 more"),
    "a target beyond a bias": ((HIDDEN[0, 0], TABLE, torch.tensor(9)), {}, InputError, "9 at index 0"),
    "an id beyond the table": ((HIDDEN, TABLE, TARGETS), {"ids": at(8, 1, 0)}, InputError, "ids of readout_loss"),
    "another width": (
        (HIDDEN[..., :3], TABLE, TARGETS),
        {},
        ShapeError,
        "hidden of shape (2, 3, 3), table of shape (7, 4)",
    ),
    "a transposed table": ((HIDDEN, TABLE.T, TARGETS), {}, ShapeError, "Hint: pass the table as it is looked up"),
    "a layer in place of its table": (
        (HIDDEN, torch.nn.Embedding(7, 4), TARGETS),
        {},
        InputError,
        "Embedding\n  expected: a dense tensor\nHint: pass its parameter: table.weight",
    ),
    "a list of targets": ((HIDDEN, TABLE, TARGETS.tolist()), {}, InputError, "Hint: torch.as_tensor(targets)"),
    "hidden states and table swapped": ((TABLE, HIDDEN, TARGETS), {}, ShapeError, "Hint: readout_loss(hidden, table,"),
    "one-hot targets": ((HIDDEN, TABLE, torch.zeros(2, 3, 7)), {}, ShapeError, "Hint: pass the ids of the tokens"),
    "targets that were not shifted": ((HIDDEN, TABLE, TARGETS[:, [0, 1, 2, 2]]), {}, ShapeError, "Hint: shift both"),
    "flat targets": ((HIDDEN, TABLE, TARGETS.flatten()), {}, ShapeError, "flatten both, or neither"),
    "targets of floats": ((HIDDEN, TABLE, TARGETS.float()), {}, InputError, "Hint: make integers of ids"),
    "a sparse table": ((HIDDEN, TABLE.to_sparse(), TARGETS), {}, InputError, "layout torch.sparse_coo"),
    "a table of 8 bits": ((HIDDEN, TABLE.to(torch.float8_e4m3fn), TARGETS), {}, InputError, "torch.float8_e4m3fn"),
    "a table of one axis": ((HIDDEN, TABLE[0], TARGETS), {}, ShapeError, "(vocab, width)"),
    "no width": ((HIDDEN[..., :0], TABLE[:, :0], TARGETS), {}, ShapeError, "shape (7, 0)"),
    "no vocabulary": ((HIDDEN, TABLE[:0], TARGETS), {}, ShapeError, "shape (0, 4)"),
    "targets of another shape": ((HIDDEN, TABLE, TARGETS.T), {}, ShapeError, "(2, 3), beside hidden"),
    "a bias of another size": ((HIDDEN, TABLE, TARGETS), {"bias": torch.ones(4)}, ShapeError, "bias"),
    "weights of another size": ((HIDDEN, TABLE, TARGETS), {"weight": torch.ones(8)}, ShapeError, "weight"),
    "ids of another shape": ((HIDDEN, TABLE, TARGETS), {"ids": TARGETS[0]}, ShapeError, "ids"),
    "a hidden state of integers": (
        (HIDDEN.long(), TABLE, TARGETS),
        {},
        InputError,
        "torch.int64\n  expected: floating",
    ),
    "a table of integers": ((HIDDEN, TABLE.int(), TARGETS), {}, InputError, "table of readout_loss"),
    "targets that are no integers": ((HIDDEN, TABLE, TARGETS.float()), {}, InputError, "integers"),
    "targets that are booleans": ((HIDDEN, TABLE, TARGETS.bool()), {}, InputError, "integers"),
    "weights of integers": ((HIDDEN, TABLE, TARGETS), {"weight": torch.ones(7).long()}, InputError, "weight"),
    "an empty batch": ((HIDDEN[:0], TABLE, TARGETS[:0]), {}, InputError, "empty batch"),
    "NaN in the hidden state": ((spoiled(HIDDEN, torch.nan, 1, 0, 2), TABLE, TARGETS), {}, InputError, "index (3, 2)"),
    "infinity in the table": ((HIDDEN, spoiled(TABLE, torch.inf, 5, 1), TARGETS), {}, InputError, "index (5, 1)"),
    "NaN in the bias": ((HIDDEN, TABLE, TARGETS), {"bias": torch.full((7,), torch.nan)}, InputError, "bias"),
    "a bias of minus infinity": ((HIDDEN, TABLE, TARGETS), {"bias": torch.full((7,), -torch.inf)}, InputError, "-1e9"),
    "a table on another device": ((HIDDEN, TABLE.to("meta"), TARGETS), {}, InputError, "hidden on cpu, table on meta"),
    "targets on another device": (
        (HIDDEN, TABLE, TARGETS.to("meta")),
        {},
        InputError,
        "Hint: targets.to(hidden.device)",
    ),
    "a factor that is no number": ((HIDDEN, TABLE, TARGETS), {"factor": "2"}, RangeError, "factor"),
    "an infinite factor": ((HIDDEN, TABLE, TARGETS), {"factor": float("inf")}, RangeError, "a finite number"),
    "a factor for each column": ((HIDDEN, TABLE, TARGETS), {"factor": torch.ones(4)}, RangeError, "shape ()"),
    "a soft cap of zero": ((HIDDEN, TABLE, TARGETS), {"soft_cap": 0.0}, RangeError, "above 0"),
    "too much smoothing": ((HIDDEN, TABLE, TARGETS), {"label_smoothing": 1.5}, RangeError, "from 0 to 1"),
    "a negative z-loss": ((HIDDEN, TABLE, TARGETS), {"z_loss": -1.0}, RangeError, "from 0"),
    "an unknown reduction": ((HIDDEN, TABLE, TARGETS), {"reduction": "avg"}, RangeError, "'mean' or 'sum' or 'none'"),
    "a chunk of nothing": ((HIDDEN, TABLE, TARGETS), {"chunk": 0}, RangeError, "at least 1"),
    "an unknown chunk": ((HIDDEN, TABLE, TARGETS), {"chunk": "large"}, RangeError, '"auto"'),
    "a fractional ignore_index": ((HIDDEN, TABLE, TARGETS), {"ignore_index": 0.5}, RangeError, "whole number"),
    "an unknown wish": ((HIDDEN, TABLE, TARGETS), {"returns": "logits"}, RangeError, "'loss' or 'stats'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_before_any_work(what, monkeypatch):
    def worked(*_):
        raise AssertionError("work was done")

    monkeypatch.setattr(operator, "sweep", worked)
    args, options, error, words = REFUSED[what]
    with pytest.raises(error, match=re.escape(words)):
        readout_loss(*args, **options)


def test_what_is_ignored_may_be_read_at_any_id():
    pad = at(99, 0, 0)
    readout_loss(HIDDEN, TABLE, at(-100, 0, 0), ids=pad, returns="stats")


def test_an_ignore_index_that_the_dtype_of_targets_cannot_hold_is_none_of_them():
    """As a byte -100 is 156."""
    table, targets = torch.eye(200, 4), torch.tensor([156, 3, 156], dtype=torch.uint8)
    hidden = table[targets.long()]
    _, stats = readout_loss(hidden, table, targets, returns="stats")
    _, same = readout_loss(hidden, table, targets.long(), returns="stats")
    assert stats.counted.all()
    assert torch.equal(stats.best, same.best)
    assert stats.accuracy == same.accuracy


def test_what_is_ignored_may_be_no_number():
    """The padding of a batch that attends to nothing: its cross entropy is that of the other tokens."""
    hidden, table = spoiled(HIDDEN, torch.nan, 0, 0).requires_grad_(), TABLE.clone().requires_grad_()
    targets = at(-100, 0, 0)
    loss = readout_loss(hidden, table, targets)
    loss.backward()
    want = torch.nn.functional.cross_entropy((HIDDEN @ TABLE.T).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, want)
    assert table.grad.isfinite().all()
    assert not hidden.grad[0, 0].any()


def test_a_block_names_the_stream_that_it_takes():
    block = TiedEmbedding(7, 4)
    with pytest.raises(ShapeError, match=r"the readout of TiedEmbedding takes the stream"):
        block.loss(HIDDEN[..., :3], TARGETS)
    with pytest.raises(InputError, match="targets of readout_loss lie outside"):
        block.loss(HIDDEN, at(7, 0, 0))


def test_a_refused_call_leaves_nothing_behind():
    hidden, table = HIDDEN.clone().requires_grad_(), TABLE.clone().requires_grad_()
    with pytest.raises(InputError):
        readout_loss(hidden, table, at(7, 0, 0))
    assert hidden.grad is None
    assert table.grad is None
    readout_loss(hidden, table, TARGETS).backward()
    assert table.grad is not None
