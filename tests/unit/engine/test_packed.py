"""Linear layers with packed weights: the same products, for any number of rows."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from redline.engine.model import is_packed, pack, packed

DTYPES = [
    pytest.param(
        dtype,
        off,
        marks=pytest.mark.skipif(not is_packed(dtype), reason=f"{dtype} is not packed here"),
        id=str(dtype),
    )
    # Of bfloat16 half a unit in the last place, and as much again for how sums are rounded.
    for dtype, off in [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)]
]


def product(layer: nn.Linear, rows: Tensor) -> Tensor:
    """What the layer should give, in float64. Before it is packed."""
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(rows.double(), layer.weight.double(), bias)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 31, 32, 33, 200])
def test_products_are_those_of_the_weights(
    rows: int, has_bias: bool, dtype: torch.dtype, off: float
) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(96, 200, bias=has_bias, dtype=dtype)
    given = torch.randn(1, rows, 96, dtype=dtype)
    wanted = product(layer, given)
    pack(layer)
    with torch.inference_mode():
        found = layer(given)
        torch.testing.assert_close(found.double(), wanted, rtol=off, atol=off)
        assert found.shape == (1, rows, 200)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_rows_that_do_not_lie_one_after_another(dtype: torch.dtype, off: float) -> None:
    layer = nn.Linear(64, 64, dtype=dtype)
    given = torch.randn(64, 6, 2, dtype=dtype)[:, :, 0].T
    wanted = product(layer, given)
    pack(layer)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, wanted, rtol=off, atol=off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_hooks_are_still_called(dtype: torch.dtype, off: float) -> None:
    layer = nn.Linear(64, 64, dtype=dtype)
    layer.register_forward_hook(lambda _module, _given, found: found + 1)
    given = torch.randn(3, 64, dtype=dtype)
    wanted = product(layer, given) + 1
    pack(layer)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, wanted, rtol=off, atol=2 * off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_weights_are_held_once(dtype: torch.dtype, off: float) -> None:
    layer = nn.Linear(64, 128, dtype=dtype)
    given = torch.randn(40, 64, dtype=dtype)
    weight = weakref.ref(layer.weight.untyped_storage())
    pack(layer)
    assert weight() is None
    # What asks for the shape is told, and the bytes that are packed.
    assert layer.weight.shape == (128, 64)
    assert layer.weight.nbytes == 128 * 64 * dtype.itemsize
    with torch.inference_mode():
        before = layer(given)
        # Once more is as good as once.
        pack(layer)
        assert torch.equal(layer(given), before)


@pytest.mark.skipif(not is_packed(torch.float32), reason="float32 is not packed here")
@pytest.mark.parametrize(("slow", "other"), [("_by_mkl", "_by_onednn"), ("_by_onednn", "_by_mkl")])
def test_float32_goes_to_the_faster_library(
    slow: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        product = make(weight, bias)

        def multiplied(rows: Tensor) -> Tensor:
            time.sleep(0.02)
            return product(rows)

        return multiplied

    def counted(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        product = make_other(weight, bias)

        def multiplied(rows: Tensor) -> Tensor:
            calls.append(len(rows))
            return product(rows)

        return multiplied

    make, make_other, calls = getattr(packed, slow), getattr(packed, other), list[int]()
    monkeypatch.setattr(packed, slow, slowed)
    monkeypatch.setattr(packed, other, counted)
    layer = nn.Linear(64, 128)
    given = torch.randn(7, 64)
    wanted = product(layer, given)
    pack(layer)
    with torch.inference_mode():
        torch.testing.assert_close(layer(given).double(), wanted, rtol=1e-5, atol=1e-5)
    assert calls[-1] == 7


def test_what_others_compute_stays_theirs() -> None:
    """Libraries that quantize put a way of their own into a layer."""
    layer = nn.Linear(64, 64)
    layer.forward = lambda rows: rows + 1  # type: ignore[method-assign]
    pack(layer)
    assert torch.equal(layer(torch.zeros(2, 64)), torch.ones(2, 64))
    assert not layer.weight.is_meta


def test_other_numbers_are_left_alone() -> None:
    layer = nn.Linear(64, 64).to(torch.float64)
    pack(layer)
    given = torch.randn(3, 64, dtype=torch.float64)
    with torch.inference_mode():
        assert torch.equal(layer(given), nn.functional.linear(given, layer.weight, layer.bias))
