"""The steps of the journal by name: what a call that changes a file is there for.

Each call on the disk lies between two moments of redline's work, such as `group: written, not
synced`; a death at a call is a death at the moment before it, after it, or within a write.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import FrameType

CALLS = (
    *("open", "mkdir", "write", "pwrite", "pread", "fsync", "ftruncate"),
    *("replace", "rename", "unlink"),
)

# Functions by which a call is told from the same call for another purpose; the innermost decides.
_PURPOSES = {
    ("lock.py", "__init__"): "opening",
    ("results_file.py", "__init__"): "resume",
    ("results_file.py", "_mend"): "lost lines",
    ("results_file.py", "drop_unfinished"): "resume",
    ("results_file.py", "drop"): "old lines",
    ("manifest.py", "save"): "manifest",
    ("recent.py", "attach"): "recent sends",
    ("recent.py", "_write"): "recent sends",
    ("repair.py", "_repaired"): "repair",
    ("resume.py", "_put_aside"): "restart",
    ("resume.py", "open_journal"): "resume",
    ("rewrite.py", "drop_mended"): "failures rewritten",
    ("rewrite.py", "put_in_order"): "sorting",
    ("rewrite.py", "set_aside"): "failures rewritten",
}
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
    purpose = _purpose(frame)
    if call == "fsync" and os.path.isdir(path):
        call = "fsync folder"
    if not purpose:
        purpose = "failures" if path.endswith(".failed.jsonl") else "group"
    if purpose == "opening":
        return Step(call, *["opening"] * 3)
    if purpose == "recent sends":
        within = f"{purpose}: within a write" if call == "pwrite" else ""
        return Step(call, purpose, within, purpose)
    if purpose == "lost lines" and not _is_within(frame, "take_out"):
        purpose = "resume"
    if ".damaged-" in path or ".outdated-" in path:
        purpose += ", aside"
    before, within, after = (
        part and f"{purpose}: {part}" for part in _MOMENTS.get(purpose, _REPLACING)[call]
    )
    return Step(call, before, within, after)


def _purpose(frame: FrameType | None) -> str:
    while frame is not None:
        name = (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name)
        if name in _PURPOSES:
            return _PURPOSES[name]
        frame = frame.f_back
    return ""


def _is_within(frame: FrameType | None, function: str) -> bool:
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
