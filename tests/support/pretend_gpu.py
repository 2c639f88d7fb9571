"""A GPU for tests on machines without one: tensors that report `cuda` and refuse to meet the CPU's.

What they hold lies in ordinary memory, so every operation gives its real result. As with a real
GPU, an operation raises RuntimeError when it is given tensors of both devices, except for what CUDA
allows: numbers without dimensions, indices that lie on the CPU, and copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_BYTES = 2**30
_GPU = torch.device("cuda", 0)
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put_, torch.index_put}
_COPYING = {Tensor.copy_}


class OnGpu(Tensor):
    """A tensor in ordinary memory that reports to be on the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _GPU

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, dict(kwargs or {}))


class _Everywhere(TorchFunctionMode):
    """Sees calls that are given no tensor of the GPU as well: those that make or move one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, dict(kwargs or {}))


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation's result, on the device where it is computed."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    is_on_gpu = any(isinstance(one, OnGpu) for one in tensors)
    if func is torch._has_compatible_shallow_copy_type:
        return False  # so a module that is moved gets new parameters
    if func is Tensor.to:
        return _moved(*args, **kwargs)
    if func is Tensor.cpu:
        return _moved(args[0], "cpu")
    if func in (Tensor.numpy, Tensor.__array__) and is_on_gpu:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    if func in _INDEXING:
        tensors = [args[0], *(one for one in args[2:] if isinstance(one, Tensor))]
    elif func in _COPYING:
        tensors, is_on_gpu = [], isinstance(args[0], OnGpu)
    if is_on_gpu:
        _check_devices(func, tensors)
    if (device := kwargs.pop("device", None)) is not None:
        is_on_gpu = torch.device(device).type == _GPU.type
        kwargs["device"] = "cpu" if is_on_gpu else device
    with torch._C.DisableTorchFunctionSubclass(), torch._C.DisableTorchFunction():
        found = func(*args, **kwargs)
    return tree_map(_on_gpu if is_on_gpu else _on_cpu, found)


def _check_devices(func: Any, tensors: list[Tensor]) -> None:
    for one in tensors:
        if not isinstance(one, OnGpu) and one.dim():
            name = getattr(func, "__name__", func)
            raise RuntimeError(
                f"{name}: Expected all tensors to be on the same device, but found at least two "
                f"devices, {_GPU} and {one.device}!"
            )


def _moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What `tensor.to(...)` gives."""
    named = [one for one in args if isinstance(one, str | torch.device)]
    named += [one.device for one in args if isinstance(one, Tensor)]
    device = torch.device(kwargs.pop("device", None) or (named or [tensor.device])[0])
    rest = [one for one in args if isinstance(one, torch.dtype)]
    rest += [one.dtype for one in args if isinstance(one, Tensor)]
    if device.type not in ("cpu", _GPU.type):
        rest.insert(0, device)
    copied = tensor
    if rest or kwargs:
        with torch._C.DisableTorchFunction():
            copied = tensor.to(*rest, **kwargs)
    return _on_gpu(copied) if device.type == _GPU.type else _on_cpu(copied)


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, OnGpu):
        return value
    return Tensor._make_subclass(OnGpu, value.detach(), value.requires_grad)


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, OnGpu):
        return value
    with torch._C.DisableTorchFunction():
        return value.as_subclass(Tensor)


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """While it is entered, there is a GPU for this thread and for those that it starts."""
    run = threading.Thread.run

    def run_on_gpu(thread: threading.Thread) -> None:
        with _Everywhere():
            run(thread)

    with (
        mock.patch.object(threading.Thread, "run", run_on_gpu),
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "mem_get_info", return_value=(_BYTES, _BYTES)),
        _Everywhere(),
    ):
        yield
