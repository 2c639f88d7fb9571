"""The steps of the journal by name: what a call that changes a file is there for.

Each call on the disk lies between two moments of redline's work, such as `group: written, not
synced`; a death at a call is a death at the moment before it, after it, or within a write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

from redline.job.outputs import repairing as repair
from redline.job.outputs import resume
from redline.journal import OutputLock, ResultsFile, manifest, results_file, rewrite
from redline.process import files
from redline.timeline import NAME as TIMELINE

CALLS = (
    *("open", "mkdir", "write", "pwrite", "pread", "fsync", "ftruncate"),
    *("replace", "rename", "unlink"),
)

# Functions by which a call is told from the same call for another purpose; the innermost decides.
_PURPOSES: dict[CodeType, str] = {
    OutputLock.__init__.__code__: "opening",
    ResultsFile.__init__.__code__: "resume",
    ResultsFile.drop.__code__: "old lines",
    files.drop_unfinished.__code__: "resume",
    manifest.save.__code__: "manifest",
    repair.repair.__code__: "repair",
    resume.open_journal.__code__: "restart",
    rewrite.drop_mended.__code__: "failures rewritten",
    rewrite.put_in_order.__code__: "sorting",
    rewrite.set_aside.__code__: "failures rewritten",
    rewrite.set_all_aside.__code__: "failures rewritten",
}
_TAKE_OUT = results_file.take_out.__code__
# By call: the moment before it, within it, and after it.
_REPLACING = {
    "open": ("before its write", "", "before its write"),
    "pread": ("reading", "", "reading"),
    "write": ("before its write", "within its write", "written, not synced"),
    "fsync": ("written, not synced", "", "synced, not renamed"),
    "replace": ("synced, not renamed", "", "renamed, folder not synced"),
    "unlink": ("before the removal", "", "removed, folder not synced"),
    "fsync folder": ("renamed, folder not synced", "", "in place"),
}
_APPENDING = {
    "open": ("before its write", "", "before its write"),
    "write": ("before its write", "within its write", "written, not synced"),
    "fsync": ("written, not synced", "", "synced, not acknowledged"),
    "pread": ("synced, not acknowledged", "", "synced, not acknowledged"),
}
_RESUME = {
    "open": ("before the file is opened", "", "before the scan"),
    "pread": ("within the scan", "", "within the scan"),
    "ftruncate": ("torn tail found", "", "torn tail cut, not synced"),
    "fsync": ("found lines not synced", "", "found lines synced"),
    "unlink": ("unfinished file found", "", "unfinished file removed"),
    "fsync folder": ("name not synced", "", "name synced"),
}
_RENAMING = {
    "open": ("in place", "", "in place"),
    "rename": ("before a rename", "", "renamed, folder not synced"),
    "fsync folder": ("renamed, folder not synced", "", "in place"),
}
_MOMENTS = {
    "group": _APPENDING,
    "failures": _APPENDING,
    "resume": _RESUME,
    "restart": _RENAMING,
}


@dataclass(frozen=True)
class Step:
    """One call on the disk, and the moments around it."""

    call: str
    before: str
    within: str
    after: str

    def moment(self, place: str) -> str:
        """place: `before` the call, `within` it, or `after` it."""
        return {"before": self.before, "within": self.within, "after": self.after}[place]


def step_of(call: str, path: str, frame: FrameType | None) -> Step:
    """The step that `call` on `path` is, made from `frame`."""
    around = list(_codes(frame))
    purpose = next((_PURPOSES[code] for code in around if code in _PURPOSES), "")
    if call == "fsync" and os.path.isdir(path):
        call = "fsync folder"
    if "limits" in path.split(os.sep):
        within = "recent sends: within a write" if call == "pwrite" else ""
        return Step(call, "recent sends", within, "recent sends")
    if os.path.basename(path).startswith(TIMELINE):
        within = "timeline: within a write" if call == "write" else ""
        return Step(call, "timeline", within, "timeline")
    if not purpose:
        purpose = "failures" if path.endswith(".failed.jsonl") else "group"
    if purpose == "opening":
        return Step(call, *["opening"] * 3)
    if purpose == "resume" and _TAKE_OUT in around:
        purpose = "lost lines"
    if ".damaged-" in path or ".outdated-" in path:
        purpose += ", aside"
    before, within, after = (
        part and f"{purpose}: {part}" for part in _MOMENTS.get(purpose, _REPLACING)[call]
    )
    return Step(call, before, within, after)


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    """What runs, from the innermost outwards."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
