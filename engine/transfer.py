"""The two ways between host and device: everything a step needs in one copy, its results in another.

On a CPU nothing is copied at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import TypeVar, cast

import torch

_ALIGNMENT = 16
"""Bytes; every tensor of a packed buffer begins at a multiple of it."""

T = TypeVar("T")


class Movable:
    """Marks a dataclass whose tensors travel together; other fields stay as they are."""


def moved(tree: T, device: torch.device) -> T:
    """``tree`` with its CPU tensors on ``device``, through one pinned buffer that nobody waits for.

    Args:
        tree: a tensor, a dict with such values, or a ``Movable`` dataclass of them.
        device: where to; a tree for the CPU comes back as it is.
    """
    if device.type == "cpu":
        return tree
    tensors = list(tensors_in(tree))
    packed = pack(tensors)
    return rebuilt(tree, unpacked(packed.to(device, non_blocking=True), tensors))


def pack(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """CPU tensors one after the other in one buffer, uint8 [bytes], pinned where there is a CUDA device."""
    sources = list(tensors)
    buffer = torch.empty(sum(map(_room, sources)), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    pack_into(buffer, sources)
    return buffer


def pack_into(buffer: torch.Tensor, tensors: Iterable[torch.Tensor]) -> None:
    """The same into a buffer of the right size."""
    place, start = buffer.numpy(), 0
    for tensor in tensors:
        source = tensor.numpy()
        place[start : start + source.nbytes].view(source.dtype).reshape(source.shape)[...] = source
        start += _room(tensor)


def unpacked(buffer: torch.Tensor, like: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Views of a packed ``buffer`` with the shapes and dtypes of ``like``, in the order they were packed."""
    start = 0
    for tensor in like:
        size = tensor.numel() * tensor.element_size()
        yield buffer[start : start + size].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor)


def fetched(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors on the CPU: the one place of a step that waits for the device."""
    return fetching(*tensors)()


def fetching(*tensors: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Begin to copy the tensors to the CPU; what comes back waits for them alone, not for later work."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return lambda: tensors
    sources = [tensor.contiguous() for tensor in tensors]
    device = sources[0].device
    packed = sources[0]
    if len(sources) > 1 or packed.dtype != torch.uint8:
        packed = torch.empty(sum(map(_room, sources)), dtype=torch.uint8, device=device)
        for target, source in zip(unpacked(packed, sources), sources, strict=True):
            target.copy_(source)
    here = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    here.copy_(packed, non_blocking=True)
    event = torch.cuda.current_stream(device).record_event()

    def wait() -> tuple[torch.Tensor, ...]:
        event.synchronize()
        return tuple(unpacked(here, sources))

    return wait


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Every tensor of a tree (see ``moved``), in a fixed order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, Movable):
        for name in _names(tree):
            yield from tensors_in(getattr(tree, name))


def rebuilt(tree: T, tensors: Iterator[torch.Tensor]) -> T:
    """The same tree around other tensors, given in the order of ``tensors_in``."""
    if isinstance(tree, torch.Tensor):
        return cast(T, next(tensors))
    if isinstance(tree, dict):
        return cast(T, {key: rebuilt(value, tensors) for key, value in tree.items()})
    if isinstance(tree, Movable):
        parts = {name: rebuilt(getattr(tree, name), tensors) for name in _names(tree)}
        return cast(T, replace(tree, **parts))  # type: ignore[type-var]
    return tree


def _names(tree: Movable) -> list[str]:
    return [item.name for item in fields(tree)]  # type: ignore[arg-type]


def _room(tensor: torch.Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNMENT) * _ALIGNMENT
