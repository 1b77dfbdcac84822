"""MiniGPT: a small pre-norm GPT whose lookup and readout are, when tied, one parameter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tiebeam.blocks.readout_loss.torch.call import readout_loss
from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.minigpt import IGNORED_TARGET, NORM_EPSILON, MiniGPTConfig, Positions
from tiebeam.zoo.torch.blocks import Block, KVCache, Rotation
from tiebeam.zoo.torch.sampling import Sampling

__all__ = ["MiniGPT", "MiniGPTConfig"]


class MiniGPT(nn.Module):
    """A pre-norm GPT.

    ids (batch, tokens) -> `embed` rows * lookup_factor [+ positions] -> blocks -> norm -> `head` product
    * readout_factor [-> soft cap] -> logits (batch, tokens, vocab).

    Args:
        config: Sizes and scales.
        generator: Where weights are drawn from; None is torch's own.

    Source: Radford et al. 2019 (the residual projections' `1/sqrt(2 * layers)`, section 2.3); Press & Wolf
        2017 (the tie), arXiv 1608.05859.

    Example:
        >>> model = MiniGPT(MiniGPTConfig(vocab=100, width=32, layers=2, heads=4, block_size=16))
        >>> model.head.weight is model.embed.weight
        True
        >>> model(torch.tensor([[10, 25, 31]])).shape
        torch.Size([1, 3, 100])
    """

    def __init__(self, config: MiniGPTConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.block_size, config.width) if config.positions == "learned" else None
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=NORM_EPSILON)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.retie()
        self.reset_parameters(generator)

    @classmethod
    def from_scheme(
        cls,
        name: str,
        *,
        vocab: int,
        width: int,
        layers: int = 4,
        heads: int | None = None,
        block_size: int = 128,
        positions: Positions = "none",
        generator: torch.Generator | None = None,
    ) -> "MiniGPT":
        """Return the model of `MiniGPTConfig.from_scheme`.

        Example:
            >>> MiniGPT.from_scheme("C", vocab=50, width=64, layers=1).config.lookup_factor
            8.0
        """
        config = MiniGPTConfig.from_scheme(
            name,
            vocab=vocab,
            width=width,
            layers=layers,
            heads=heads,
            block_size=block_size,
            positions=positions,
        )
        return cls(config, generator=generator)

    def retie(self) -> None:
        """Make the readout's table the lookup's again, where the config ties them."""
        if self.config.tie:
            self.head.weight = self.embed.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MiniGPT":
        """Keep the tie where torch makes new parameters module by module (`to_empty`, a move off meta)."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.retie()
        return self

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight anew by the config: blocks first, so that they are the same for every table."""
        config = self.config
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear) and module is not self.head:
                std = config.linear_std(module.in_features, writes=name.endswith("project"))
                module.weight.normal_(0.0, std, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
        if self.positions is not None:
            self.positions.weight.normal_(0.0, config.position_std, generator=generator)
        self.embed.weight.normal_(0.0, config.lookup_std, generator=generator)
        if not config.tie:
            self.head.weight.normal_(0.0, config.own_readout_std, generator=generator)

    def forward(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return the logits of the next token at every position.

        Args:
            ids: (batch, tokens), int64 or int32, at most `block_size` tokens.
            cache: Of the tokens before these; it is extended by these.

        Returns:
            (batch, tokens, vocab). Unit: nats.

        Raises:
            InputError: `ids` are no integers of rank 2, or (on a CPU; an accelerator would have to be
                waited for) one lies outside the table.
            RangeError: More tokens than `block_size`, those in the cache included.
        """
        return self.readout(self.stream(ids, cache))

    def stream(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return what the readout reads, (batch, tokens, width): `forward` without its last product."""
        self._check_ids(ids)
        tokens, first = ids.shape[1], 0
        if cache is not None:
            cache.check_room(tokens)
            first = cache.length
        x = self._lookup(ids)
        if self.positions is not None:
            x = x + self.positions.weight[first : first + tokens]
        rotation = None
        if self.config.positions == "rotary":
            rotation = Rotation.of(first, tokens, self.config.width // self.config.heads, x.device)
        x = self.drop(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, cache, layer)
        if cache is not None:
            cache.length += tokens
        return self.norm(x)  # type: ignore[no-any-return]

    def readout(self, hidden: Tensor) -> Tensor:
        """Return the logits of `hidden`, (..., width) -> (..., vocab)."""
        logits = _scaled(self.head(hidden), self.config.readout_factor)
        cap = self.config.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def loss(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean cross entropy of the targets that are not -100, without holding the logits.

        Args:
            ids: (batch, tokens).
            targets: (batch, tokens), the right next token at each position. None: `ids` themselves are
                shifted by one, and may hold one token more than `block_size`.

        Returns:
            A scalar. Unit: nats. It is NaN where every target is -100.

        Raises:
            InputError: As `forward`; one token alone and no targets; what `readout_loss` refuses, as a target
                outside the table.
            ShapeError: `targets` and `ids` differ in shape.
        """
        if targets is None:
            _check_integers("ids", ids)
            if ids.shape[1] < 2:
                raise InputError(
                    "one token has no next token",
                    got=f"ids of shape {tuple(ids.shape)}",
                    hint="pass targets, or at least two tokens",
                )
            ids, targets = ids[:, :-1], ids[:, 1:]
        elif targets.shape != ids.shape:
            raise ShapeError("targets do not fit ids", got=str(tuple(targets.shape)), expected=str(tuple(ids.shape)))
        return readout_loss(
            self.stream(ids),
            self.head.weight,
            targets,
            factor=self.config.readout_factor,
            soft_cap=self.config.soft_cap,
            ignore_index=IGNORED_TARGET,
        )

    @torch.no_grad()
    def generate(
        self,
        prefix: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        greedy: bool = False,
        generator: torch.Generator | None = None,
        use_cache: bool = True,
    ) -> Tensor:
        """Continue every row of `prefix`, without dropout.

        A token sees at most `block_size` tokens, itself included: beyond that the window slides, and what
        it has left no longer counts. What a cache keeps of deeper layers would still know of it, so a
        sliding window is read afresh for each token, with a cache or without.

        Args:
            prefix: (batch, tokens), at least one token, of any length.
            max_new_tokens: Tokens to add.
            temperature: Divides the logits.
            top_k: Only the k largest logits take part.
            top_p: Of those, the fewest of largest probability that sum to at least p.
            greedy: Take the largest logit.
            generator: Where draws come from; None is torch's own.
            use_cache: Keep keys and values. The tokens are the same.

        Returns:
            (batch, tokens + max_new_tokens): the prefix and what follows it.

        Raises:
            InputError: The prefix is empty, no integers of rank 2, or outside the table.
            RangeError: A number lies outside its range.

        Example:
            >>> model = MiniGPT(MiniGPTConfig(vocab=10, width=8, layers=1, heads=2, block_size=4))
            >>> model.generate(torch.tensor([[1, 2]]), 6, greedy=True).shape
            torch.Size([1, 8])
        """
        sampling = Sampling(temperature, top_k, top_p, greedy)
        self._check_prefix(prefix, max_new_tokens)
        size, ids = self.config.block_size, prefix
        cache = KVCache(self.config.layers, size) if use_cache else None
        with _evaluating(self):
            for _ in range(max_new_tokens):
                if cache is None or ids.shape[1] > size:
                    hidden = self.stream(ids[:, -size:])
                else:
                    hidden = self.stream(ids[:, cache.length :], cache)
                token = sampling.pick(self.readout(hidden[:, -1]), generator)
                ids = torch.cat((ids, token[:, None].to(ids.dtype)), dim=1)
        return ids

    def _lookup(self, ids: Tensor) -> Tensor:
        try:
            return _scaled(self.embed(ids), self.config.lookup_factor)
        except IndexError as error:  # costs nothing where all is well, and nothing waits for a device
            raise self._outside("ids", ids) from error

    def _check_ids(self, ids: Tensor) -> None:
        _check_integers("ids", ids)
        if ids.shape[1] > self.config.block_size:
            raise RangeError(
                "more tokens than the model can read",
                got=f"ids of shape {tuple(ids.shape)}",
                expected=f"at most {self.config.block_size} tokens (block_size)",
                hint="cut the sequence, or choose a larger block_size",
            )

    def _check_prefix(self, prefix: Tensor, max_new_tokens: int) -> None:
        _check_integers("prefix", prefix)
        if prefix.shape[1] == 0:
            raise InputError("the prefix is empty", got=f"shape {tuple(prefix.shape)}", expected="at least one token")
        if max_new_tokens < 0:
            raise RangeError("max_new_tokens", got=repr(max_new_tokens), expected="at least 0")
        if prefix.numel() and not bool(((prefix >= 0) & (prefix < self.config.vocab)).all()):
            raise self._outside("prefix", prefix)

    def _outside(self, name: str, ids: Tensor) -> InputError:
        return InputError(
            f"{name} lie outside the table 'embed.weight'",
            got=f"values from {int(ids.min())} to {int(ids.max())}",
            expected=f"0 to {self.config.vocab - 1}",
            hint="the tokenizer and the model must have one vocabulary",
        )


def _check_integers(name: str, ids: Tensor) -> None:
    if ids.dtype not in (torch.int64, torch.int32) or ids.ndim != 2:
        raise InputError(
            f"{name} of MiniGPT",
            got=f"{ids.dtype} of shape {tuple(ids.shape)}",
            expected="int64 or int32 of shape (batch, tokens)",
            hint="add a batch axis with ids[None]" if ids.ndim == 1 else "",
        )


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation, and each back to what it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
