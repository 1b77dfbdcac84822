"""The demo from end to end: read, tokenise, diagnose, mend, train both side by side, let both write."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

import tiebeam
from tiebeam.experiments.corpus import Corpus, TokenData, collect_corpus, encode_corpus, train_tokenizer
from tiebeam.experiments.curve import Curve
from tiebeam.experiments.demo.result import DemoEvent, DemoResult, DemoRun, Stage
from tiebeam.experiments.training import TrainSettings, train
from tiebeam.experiments.windows import spread_windows
from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig

OnEvent = Callable[[DemoEvent], object]


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Sizes of the demo. The defaults take some 60 s of processor time, half of that on two cores.

    Attributes:
        vocab: Tokens of the BPE.
        max_bytes: Of text.
        width, layers, heads, block_size: Of the model.
        seed: Of its weights, of the mended table and of what is written.
        inspected: Windows that `tiebeam.inspect` and `tiebeam.initialize` are shown.
        prompt: What both models continue.
        sample_tokens: How far.
        training: How both are trained.
    """

    vocab: int = 4096
    max_bytes: int = 3_000_000
    width: int = 128
    layers: int = 3
    heads: int = 2
    block_size: int = 128
    seed: int = 0
    inspected: int = 4
    prompt: str = "def "
    sample_tokens: int = 60
    training: TrainSettings = field(default_factory=TrainSettings)


def run_demo(
    *, steps: int | None = None, on_event: OnEvent | None = None, settings: DemoSettings | None = None
) -> DemoResult:
    """Train a model with the classic mistake, and the same model mended, on the same batches.

    The mistake is a tied table that keeps `nn.Embedding`'s default std of 1: logits of std
    `sqrt(width)`. The mended model is the same draw, after `tiebeam.initialize(model, ids)`.

    Args:
        steps: Of each training; None is `settings.training.steps`.
        on_event: Told of progress, in the order of `result.STAGES`, but for the two trainings, which run side
            by side on threads of their own; it is never called twice at once.
        settings: Sizes; None is the defaults.

    Raises:
        BackendError: The `tokenizers` package is missing.
        InputError: This Python's standard library holds no text.
    """
    settings = DemoSettings() if settings is None else settings
    training = settings.training if steps is None else dataclasses.replace(settings.training, steps=steps)
    stages, started = _Stages(on_event), time.perf_counter()

    corpus, data = _read(settings, stages)
    config = _mistaken_config(settings, data.vocab)
    ids = spread_windows(data.validation, settings.block_size, settings.inspected)

    with stages.stage("inspect"):
        mistake = _build(config, settings.seed)
        diagnosed = tiebeam.inspect(mistake, ids)
    with stages.stage("initialize"):
        mended = _build(config, settings.seed)
        initialized = tiebeam.initialize(mended, ids, mode="auto", seed=settings.seed)
        healthy = tiebeam.inspect(mended, ids)

    curves = _train_both((mistake, mended), data, training, stages)
    with _one_core_a_thread(), stages.stage("sample"):
        samples = tuple(_write(model, data, settings) for model in (mistake, mended))
    return DemoResult(
        mistake=DemoRun(diagnosed, curves[0], samples[0]),
        mended=DemoRun(healthy, curves[1], samples[1]),
        initialized=initialized,
        vocab=data.vocab,
        config=dataclasses.asdict(config),
        settings=dataclasses.asdict(training),
        prompt=settings.prompt,
        corpus=_facts(corpus, data),
        stage_seconds=stages.seconds,
        seconds=time.perf_counter() - started,
    )


class _Stages:
    """Tells of each stage's beginning and end, from one thread at a time, and keeps its time."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._turn = threading.Lock()
        self.seconds: dict[str, float] = {}

    def tell(self, event: DemoEvent) -> None:
        if self._on_event is not None:
            with self._turn:
                self._on_event(event)

    @contextmanager
    def stage(self, name: Stage, total: int = 1) -> Iterator[Callable[[str], None]]:
        """Run one stage; what is given to the yielded callable is the detail of its last event."""
        details: list[str] = []
        started = time.perf_counter()
        self.tell(DemoEvent(name, 0, total))
        yield details.append
        self.seconds[name] = time.perf_counter() - started
        self.tell(DemoEvent(name, total, total, detail=" ".join(details)))


def _read(settings: DemoSettings, stages: _Stages) -> tuple[Corpus, TokenData]:
    with stages.stage("corpus") as detail:
        corpus = collect_corpus(settings.max_bytes)
        detail(f"{corpus.files} files, {corpus.size / 1e6:.1f} MB")
    with stages.stage("tokenizer") as detail:
        tokenizer = train_tokenizer(corpus.train, settings.vocab)
        detail(f"{tokenizer.get_vocab_size():,} tokens")
    with stages.stage("encode") as detail:
        data = encode_corpus(corpus, tokenizer)
        detail(f"{data.train.size:,} ids to train on, {data.validation.size:,} held out")
    return corpus, data


def _mistaken_config(settings: DemoSettings, vocab: int) -> MiniGPTConfig:
    return MiniGPTConfig(
        vocab=vocab,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        block_size=settings.block_size,
        tie=True,
        table_std=None,  # the mistake: nobody thought of it
    )


def _build(config: MiniGPTConfig, seed: int) -> MiniGPT:
    return MiniGPT(config, generator=torch.Generator().manual_seed(seed))


def _train_both(
    models: tuple[MiniGPT, MiniGPT], data: TokenData, training: TrainSettings, stages: _Stages
) -> tuple[Curve, Curve]:
    """Train both at once, each on a thread and a core of its own.

    Two cores that share each small product wait for one another most of the time: on a busy machine one
    training after the other took five times as long. Nor do results depend on the number of cores then.
    """
    stop = threading.Event()

    def run(model: MiniGPT, name: Stage) -> Curve:
        return _train(model, data, training, stages, name, stop)

    with _one_core_a_thread(), ThreadPoolExecutor(2) as pool:
        try:
            one = pool.submit(run, models[0], "train-mistake")
            other = pool.submit(run, models[1], "train-mended")
            for done in wait((one, other), return_when=FIRST_EXCEPTION).done:
                done.result()  # what went wrong first, if anything did
            return one.result(), other.result()
        finally:
            stop.set()  # where one failed, or the user broke off, the other must not be waited for


@contextmanager
def _one_core_a_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    model: MiniGPT,
    data: TokenData,
    training: TrainSettings,
    stages: _Stages,
    name: Stage,
    stop: threading.Event,
) -> Curve:
    def on_step(done: int, loss: float) -> None:
        if stop.is_set():
            raise CancelledError
        if done < training.steps:
            stages.tell(DemoEvent(name, done, training.steps, loss))

    with stages.stage(name, training.steps) as detail:
        curve = train(model, data.train, data.validation, training, on_step)
        detail(f"validation loss {curve.initial_loss:.2f} -> {curve.final_loss:.2f}")
    return curve


def _write(model: MiniGPT, data: TokenData, settings: DemoSettings) -> str:
    prefix: Tensor = torch.tensor([data.tokenizer.encode(settings.prompt).ids])
    generator = torch.Generator().manual_seed(settings.seed)
    ids = model.generate(prefix, settings.sample_tokens, temperature=0.8, top_p=0.95, generator=generator)
    return data.tokenizer.decode(ids[0].tolist())


def _facts(corpus: Corpus, data: TokenData) -> dict[str, object]:
    return {
        "root": str(corpus.root),
        "files": corpus.files,
        "bytes": corpus.size,
        "train_tokens": int(data.train.size),
        "validation_tokens": int(data.validation.size),
    }
