"""What every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that lies beside the checkout, or a skip."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data: there is no ../shared/data beside this checkout")
    return SHARED_DATA
