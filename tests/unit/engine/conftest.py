"""What every test of the engine runs with."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Test processes share the cores already: a second thread would only wait for the first."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)
