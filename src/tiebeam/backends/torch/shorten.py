"""The same inputs at other lengths and with other values: what is constant must come out the same."""

from collections.abc import Mapping
from typing import Any

import torch

from tiebeam.backends.torch.containers import rebuilt, tensors_of
from tiebeam.backends.torch.recording.shadow import valueless

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def shorter_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Arguments]:
    """Crops of every sequence axis, with token ids replaced by others that occur.

    Sequence lengths are the last axes of integer tensors (else the second axis of the first tensor that has
    one); every axis of such a size in any tensor is cropped, in containers too. Floats within an object of a class
    of its own are a state (a cache of earlier tokens), and stay. The first try changes the batch as well. Where
    something else has to go with the ids (the features of an image with its places, their grid), later ones add to
    the longest axis alone; for models that take one length the last but one changes the batch alone, and the last
    values alone.
    """
    tensors = list(tensors_of((args, dict(kwargs))))
    lengths = {int(t.shape[-1]) for t in tensors if not t.is_floating_point() and t.ndim} - {0}
    if not lengths:
        lengths = {int(t.shape[1]) for t in tensors if t.ndim > 1} - {0}
    if not lengths:
        return []
    first = next(t for t in tensors if t.ndim and lengths.intersection(t.shape))
    batch = int(first.shape[0]) if first.ndim > 1 else 0

    def cropped(cut: float) -> dict[int, int]:
        return {n: n if not cut else max(1, n - int(cut) if cut >= 1 else int(n * cut)) for n in lengths}

    def changed(t: torch.Tensor, data: bool, shorter: Mapping[int, int], rows: int) -> torch.Tensor:
        if t.is_floating_point() and not data:
            return t
        t = _other_values(t)
        for axis, size in enumerate(t.shape):
            if size in shorter and (axis or t.ndim == 1 or size != batch):
                t = t.narrow(axis, 0, shorter[int(size)])
        if batch and rows != batch and t.ndim and t.shape[0] == batch:
            t = t[:rows] if rows < batch else torch.cat([t, t])
        return t.clone()

    def all_changed(cut: float, rows: int) -> Arguments:
        shorter = cropped(cut)
        other: Arguments = rebuilt((args, dict(kwargs)), lambda t, data: changed(t, data, shorter, rows))
        return other

    other = batch - 1 if batch > 1 else 2
    tries = [all_changed(1, other)] if batch else []
    tries += [all_changed(cut, batch) for cut in (1, 2, 0.75, 0.5)]
    tries += [_longer((args, dict(kwargs)), max(lengths), batch, more) for more in (1, 2)]
    tries += [all_changed(0, other)] if batch else []
    shapes = [t.shape for t in tensors]  # what could not be built anew is as long as it was, and confirms nothing
    return [*(a for a in tries if [t.shape for t in tensors_of(a)] != shapes), all_changed(0, batch)]


def _longer(given: Arguments, length: int, batch: int, more: int) -> Arguments:
    """The last position of every axis of this length once or twice more, and ids that occur once as others."""

    def changed(t: torch.Tensor, data: bool) -> torch.Tensor:
        axes = [a for a, n in enumerate(t.shape) if n == length and (a or t.ndim == 1 or n != batch)]
        if not axes or (t.is_floating_point() and not data):
            return t
        t = _single_ones_turned(t)
        for axis in axes:
            t = torch.cat([t, *[t.narrow(axis, length - 1, 1)] * more], axis)
        return t

    longer: Arguments = rebuilt(given, changed)
    return longer


def _single_ones_turned(t: torch.Tensor) -> torch.Tensor:
    """Ids that occur once in reverse, the smallest and the largest of them replaced; all others keep their places.

    What occurs again can be a mark: as many of them as an image has features.
    """
    if t.is_floating_point() or t.dtype == torch.bool or valueless(t):
        return t
    _, places, counts = torch.unique(t, return_inverse=True, return_counts=True)
    single = counts[places] == 1
    if int(single.sum()) < 4:
        return t
    other = t.clone()
    other[single] = _other_values(t[single])
    return other


def _other_values(t: torch.Tensor) -> torch.Tensor:
    """Ids in reverse, the smallest and the largest replaced by their neighbours: each reading of them changes.

    What holds zeros and ones alone is a mask or a segment, and stays.
    """
    if t.is_floating_point() or t.dtype == torch.bool or valueless(t) or t.numel() < 2:
        return t
    values, places = torch.unique(t, return_inverse=True)
    if len(values) < 2 or (len(values) == 2 and int(values[0]) == 0 and int(values[1]) == 1):
        return t
    if len(values) < 4:
        other: torch.Tensor = values.flip(0)[places]
        return other
    values = torch.cat([values[1:2], values[1:-1], values[-2:-1]])
    return values[places].flip(-1)
