"""The bodies of requests for a batch."""

from __future__ import annotations

import json

import pytest

from redline.clock import SYSTEM
from redline.serve.batches import BatchSettings
from redline.serve.batches.asked import read_batch
from redline.serve.http import Refusal

ASKED = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"input_file_id": 1}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": 1, "seconds": 3600}}, "output_expires_after"),
        ({"output_expires_after": {"seconds": 3600}}, "anchor"),
    ],
)
def test_the_wrong_field_is_named(changed: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal, match="is not valid") as caught:
        read_batch(json.dumps(ASKED | changed).encode(), "acme", BatchSettings(), SYSTEM)
    assert caught.value.body["error"]["param"] == param
