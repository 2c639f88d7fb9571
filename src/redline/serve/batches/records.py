"""Defines the stored records of files and batches.

status       meaning                                          turns to
validating   its file is being checked, or it waits its turn  in_progress, finalizing, failed,
                                                              cancelling
in_progress  its job is running, or resumes after a restart   finalizing, cancelling
finalizing   its output and error files are being written     completed, expired, failed
cancelling   a client cancelled it; calls in flight may end   cancelled; finalizing or failed, if it
                                                              cannot continue
completed    every line has its answer or its error
failed       its file was invalid and no line was sent; or it cannot continue, and keeps its results
expired      its window is over; lines without an outcome have the error batch_expired
cancelled    like expired, but with the error batch_cancelled
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from redline.apis import (
    ENDED,
    BatchObject,
    FileObject,
    Problem,
    counts_object,
    errors_object,
)

UPLOADED, WRITTEN = "batch", "batch_output"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a file. created_s, expires_s: in seconds since 1970."""

    id: str
    tenant: str
    filename: str
    purpose: str
    size_bytes: int
    created_s: int
    expires_s: int

    def shown(self) -> FileObject:
        """Returns the file's description in the API's format."""
        return FileObject(
            id=self.id,
            bytes=self.size_bytes,
            created_at=self.created_s,
            expires_at=self.expires_s,
            filename=self.filename,
            purpose=self.purpose,
        )


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The final status of a batch and the ids of its files, saved before the files are written."""

    ending: str
    output_id: str
    error_id: str


class BatchRecord(msgspec.Struct, kw_only=True):
    """The record of a batch.

    shown: the batch in the API's format. output_s: seconds for which its output files are kept.
    is_checked: the check has found its input valid. outputs: None until the job has ended.
    """

    tenant: str
    shown: BatchObject
    output_s: int
    is_checked: bool = False
    outputs: Outputs | None = None

    @property
    def id(self) -> str:
        return self.shown.id

    @property
    def status(self) -> str:
        return self.shown.status

    @property
    def is_over(self) -> bool:
        return self.status in ENDED

    def become(self, status: str, wall_s: float) -> None:
        """Changes the status. wall_s: the time of the change, in seconds since 1970."""
        self._change(status=status, **{f"{status}_at": int(wall_s)})

    def count(self, total: int, completed: int, failed: int) -> None:
        """Updates the counts of lines."""
        self._change(request_counts=counts_object(total, completed, failed))

    def fail(self, problems: Sequence[Problem], wall_s: float) -> None:
        """Ends the batch as failed; no line was sent."""
        self.blame(problems)
        self.become("failed", wall_s)

    def blame(self, problems: Sequence[Problem]) -> None:
        """Records why the batch fails."""
        self._change(errors=errors_object(problems))

    def finalize(self, outputs: Outputs, wall_s: float) -> None:
        """Records that the batch's files are about to be written."""
        self.outputs = outputs
        if outputs.ending != "cancelled":
            self.become("finalizing", wall_s)

    def end(self, files: tuple[str | None, str | None], usage: Any, wall_s: float) -> None:
        """Ends the batch with its final status. files: ids of the output and error files.

        An id is None if its file would be empty.
        """
        assert self.outputs is not None
        self._change(output_file_id=files[0], error_file_id=files[1], usage=usage)
        self.become(self.outputs.ending, wall_s)

    def _change(self, **fields: Any) -> None:
        self.shown = msgspec.structs.replace(self.shown, **fields)
