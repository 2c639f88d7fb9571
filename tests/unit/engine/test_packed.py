"""Linear layers with packed weights: the same products, for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from redline.engine.packed import pack

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="there is no MKL here")


def product(layer: nn.Linear, rows: Tensor) -> Tensor:
    """What the layer should give, in float64."""
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(rows.double(), layer.weight.double(), bias)


@needs_mkl
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 31, 32, 33, 200])
def test_products_are_those_of_the_weights(rows: int, has_bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(96, 200, bias=has_bias)
    given = torch.randn(1, rows, 96)
    pack(layer)
    with torch.inference_mode():
        found = layer(given)
        torch.testing.assert_close(found.double(), product(layer, given), rtol=1e-5, atol=1e-5)
        assert found.shape == (1, rows, 200)


@needs_mkl
def test_rows_that_do_not_lie_one_after_another() -> None:
    layer = nn.Linear(64, 64)
    given = torch.randn(64, 6, 2)[:, :, 0].T
    pack(layer)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, product(layer, given), rtol=1e-5, atol=1e-5)


@needs_mkl
def test_hooks_are_still_called() -> None:
    layer = nn.Linear(64, 64)
    layer.register_forward_hook(lambda _module, _given, found: found + 1)
    pack(layer)
    given = torch.randn(3, 64)
    with torch.inference_mode():
        found = layer(given).double()
    torch.testing.assert_close(found, product(layer, given) + 1, rtol=1e-5, atol=1e-5)


def test_other_numbers_are_left_alone() -> None:
    layer = nn.Linear(64, 64).to(torch.bfloat16)
    pack(layer)
    given = torch.randn(3, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(layer(given), nn.functional.linear(given, layer.weight, layer.bias))
