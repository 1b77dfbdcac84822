"""A folder with a small module of models, and a way to run the command in this process."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULE = '''
import functools

import torch
from torch import nn
import torch.nn.functional as F


class TiedLM(nn.Module):
    """A tied language model with a normalisation before the readout."""

    def __init__(self, vocab=300, width=32, std=None):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        std = width**-0.5 if std is None else std
        nn.init.normal_(self.table.weight, std=std)
        self.body = nn.Linear(width, width)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.body(x)
        return F.linear(F.layer_norm(x, x.shape[-1:]), self.table.weight)


class NeedsVocab(TiedLM):
    def __init__(self, vocab):
        super().__init__(vocab)


def build():
    return TiedLM()


def build_with_inputs():
    return TiedLM(), torch.arange(6)[None]


def loud():
    print("building ...")
    return TiedLM(), torch.arange(6)[None]


def mistake():
    return TiedLM(std=1.0), torch.arange(6)[None]


def scaled():
    model = TiedLM()
    model.register_buffer("factor", torch.tensor(8.0))
    return model


class Drops(TiedLM):
    def forward(self, ids):
        x = self.body(F.dropout(self.table(ids), 0.3, self.training))
        return F.linear(F.layer_norm(x, x.shape[-1:]), self.table.weight)


def drops():
    return Drops(), torch.arange(6)[None]


def nothing():
    return None


def quadruple():
    return 1, 2, 3, 4


def broken():
    raise RuntimeError("no disk of weights here")


def leaves():
    raise SystemExit(3)


class Alarm(BaseException):
    """What no handler of errors catches."""


def alarmed():
    raise Alarm("on fire")


class Alarms(TiedLM):
    def forward(self, ids):
        raise Alarm("on fire")


def interrupted():
    raise KeyboardInterrupt


def refuses():
    return TiedLM(), torch.full((1, 4), 10**6)


def no_table():
    return nn.Linear(4, 4), torch.zeros(2, 4)


def with_config():
    model = TiedLM()
    model.config = {"vocab_size": 300, "hidden_size": 32, "dtype": torch.float32}
    return model, torch.arange(6)[None]


ready = TiedLM()
partly = functools.partial(TiedLM, 40, 8)
'''


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module `lm` of models in it."""
    (tmp_path / "lm.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "lm", raising=False)
    yield tmp_path
    sys.modules.pop("lm", None)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `tiebeam ARGS` in this process."""
    from tiebeam.cli import main

    def ran(*args: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in args])
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return ran
