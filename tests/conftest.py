"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No example may take a busy machine too long.
settings.register_profile("redline", deadline=None)
settings.load_profile("redline")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that lies beside the checkout, or a skip."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data: there is no ../shared/data beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where engine_models leaves what it makes: one folder for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "models"
