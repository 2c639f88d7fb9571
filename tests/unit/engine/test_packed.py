"""Linear layers with packed weights: the same products, for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from redline.engine.packed import pack

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="there is no MKL here")
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="there is no oneDNN here"
)
DTYPES = [
    pytest.param(torch.float32, 1e-5, marks=needs_mkl),
    # Half a unit in the last place of bfloat16, and as much again for how sums are rounded.
    pytest.param(torch.bfloat16, 2**-7, marks=needs_onednn),
]


def product(layer: nn.Linear, rows: Tensor) -> Tensor:
    """What the layer should give, in float64."""
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
    pack(layer)
    with torch.inference_mode():
        found = layer(given)
        torch.testing.assert_close(found.double(), product(layer, given), rtol=off, atol=off)
        assert found.shape == (1, rows, 200)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_rows_that_do_not_lie_one_after_another(dtype: torch.dtype, off: float) -> None:
    layer = nn.Linear(64, 64, dtype=dtype)
    given = torch.randn(64, 6, 2, dtype=dtype)[:, :, 0].T
    pack(layer)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, product(layer, given), rtol=off, atol=off)


@pytest.mark.parametrize(("dtype", "off"), DTYPES)
def test_hooks_are_still_called(dtype: torch.dtype, off: float) -> None:
    layer = nn.Linear(64, 64, dtype=dtype)
    layer.register_forward_hook(lambda _module, _given, found: found + 1)
    pack(layer)
    given = torch.randn(3, 64, dtype=dtype)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, product(layer, given) + 1, rtol=off, atol=2 * off)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layers_do_not_bring_their_weights_into_order_again(dtype: torch.dtype) -> None:
    """A product that is not by packed weights would read those that stand in the layer."""
    layer = nn.Linear(64, 64, bias=False, dtype=dtype)
    given = torch.randn(40, 64, dtype=dtype)
    pack(layer)
    with torch.inference_mode():
        before = layer(given)
        layer.weight.zero_()
        assert torch.equal(layer(given), before)


def test_other_numbers_are_left_alone() -> None:
    layer = nn.Linear(64, 64).to(torch.float64)
    pack(layer)
    given = torch.randn(3, 64, dtype=torch.float64)
    with torch.inference_mode():
        assert torch.equal(layer(given), nn.functional.linear(given, layer.weight, layer.bias))
