"""Packs the weights of linear layers on a CPU in the order in which the library reads them.

A library reorders a weight matrix before each product. For the few rows of a generating step, that
takes as long as the product itself, although the weights are the same in every step. Therefore they
are reordered only once: when measured, a product with 1 to 32 rows then took 0.5 to 0.7 of the
time. Packed weights work for any number of rows; the number that they are packed for determines the
order.

In float32, two libraries can pack weights. Which is faster depends on the processor, so if both are
available, they are timed once for each shape of weights.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

# The default max_step_tokens. Weights that MKL packs for fewer rows are no faster with few rows.
_MKL_ROWS = 512
# The default max_batch_size. Weights that oneDNN packs for more rows are slower with few rows.
_ONEDNN_ROWS = 32
_TIMED = 5
# oneDNN is used if it takes less than this share of MKL's time. With a share near 1, the choice
# (and thus the rounding of the last digit) would differ from one start to the next.
_CLEARLY_FASTER = 0.9

_Product = Callable[[Tensor], Tensor]
_Maker = Callable[[Tensor, Tensor | None], _Product]


def pack(model: Any) -> None:
    """Makes the model's linear layers on a CPU use packed weights.

    In float32, MKL packs them, or oneDNN if that is clearly faster; in bfloat16, oneDNN. A layer's
    own weight is replaced by one with the same shape but no memory; an embedding that shares the
    weight keeps it. Layers of other kinds, layers whose dtype cannot be packed here, layers packed
    already and layers with a `forward` of their own are not changed.
    """
    layers: list[Any] = [layer for layer in model.modules() if type(layer) is nn.Linear]
    makers: dict[torch.Size, _Maker] = {}
    for layer in layers:
        weight = layer.weight.detach()
        if weight.device.type != "cpu" or not weight.numel() or "forward" in layer.__dict__:
            continue
        if is_packed(weight.dtype):
            if weight.shape not in makers:
                makers[weight.shape] = _maker(weight)
            layer.forward = makers[weight.shape](weight, layer.bias)
            layer.weight = nn.Parameter(weight.to("meta"), requires_grad=False)


def is_packed(dtype: torch.dtype) -> bool:
    """Returns whether weights of this dtype are packed, which needs a library that can do so."""
    backends: Any = torch.backends
    if dtype is torch.float32:
        return backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")
    return (
        dtype is torch.bfloat16
        and _has_onednn()
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _has_onednn() -> bool:
    backends: Any = torch.backends
    return backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _maker(weight: Tensor) -> _Maker:
    """Returns the packing function of the library to use for this weight."""
    if weight.dtype is not torch.float32:
        return _by_onednn
    if not _has_onednn():
        return _by_mkl
    rows = weight.new_ones(_ONEDNN_ROWS, weight.shape[1])
    by_mkl, by_onednn = (_seconds(make(weight, None), rows) for make in (_by_mkl, _by_onednn))
    return _by_onednn if by_onednn < _CLEARLY_FASTER * by_mkl else _by_mkl


@torch.inference_mode()
def _seconds(product: _Product, rows: Tensor) -> float:
    """Returns the median seconds of a product with `rows`; the first product does not count."""
    found = timeit.repeat(partial(product, rows), number=1, repeat=_TIMED + 1)
    return median(found[1:])


def _by_mkl(weight: Tensor, bias: Tensor | None) -> _Product:
    kept: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _MKL_ROWS)
    # Only the weight's shape is used.
    shape, width = weight.new_zeros(()).expand(weight.shape), weight.shape[1]

    def multiplied(rows: Tensor) -> Tensor:
        count = rows.numel() // width
        found: Tensor = torch.ops.mkl._mkl_linear(rows.contiguous(), kept, shape, bias, count)
        return found

    return multiplied


def _by_onednn(weight: Tensor, bias: Tensor | None) -> _Product:
    kept: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ONEDNN_ROWS)

    def multiplied(rows: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, kept, bias, "none", [], "")
        return found

    return multiplied
