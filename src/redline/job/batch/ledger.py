"""Keeps the state of batches for later runs: in batches.jsonl, in the state folder of the output.

A part is a group of rows that are sent in one batch. The file has one note per line. Each note is
written and synced before the next step is taken.

  a part is   from the note    its rows are                         after a restart it is
  spooled     part             in a local file, durable             uploaded
  uploaded    file             in a file at the provider            made into a batch
  making      making           perhaps in a batch                   looked for at the provider first
  running     batch            in this batch                        polled
  uploaded    refused          in no batch: the provider refused    made into a batch
  done        done             in the journal, in a later part, or to be sent again

The first note names the run, so that its batches can be recognized by their metadata; another such
note follows when the output continues at another provider. A row that is in two parts belongs to
the later part: it was sent again, and the process died before the earlier part was noted as done.
"""

from __future__ import annotations

import os
import secrets
import zlib
from functools import reduce
from pathlib import Path

import msgspec

from redline.calls.cost import NOTHING, Amount
from redline.errors import JournalError
from redline.job.batch.plan import MOST_SILENCE_S, Pace, next_look_s
from redline.journal import Output
from redline.process import free_name, sync_name, telling, unwritable, write_all

_HINT = "look up the batches of this run at the provider, then start over with --restart"
# The state of a part after each kind of note.
_STATES = {"file": "uploaded", "making": "making", "batch": "running", "refused": "uploaded"}


class DamagedLedger(JournalError):
    """The ledger of an output, or a part in it, is damaged; --restart renames the ledger."""


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the ledger. at: the kind of note: `run`, `pace`, or one of the table above.

    run, place: the run's name and its provider. rows, url, model: the number of a part's rows, and
    their path and model. worst: the amount reserved for the part. file, batch: IDs at the provider.
    wall_s: the wall time when a batch was about to be created. spent: the cost of a part that is
    done. row_s, row_tokens: the pace of rows that are sent live, for --via auto; see `Pace`.
    """

    at: str
    part: int = 0
    run: str = ""
    place: str = ""
    rows: int = 0
    url: str = ""
    model: str = ""
    worst: Amount = NOTHING
    file: str = ""
    batch: str = ""
    wall_s: float = 0.0
    spent: Amount = NOTHING
    row_s: float = 0.0
    row_tokens: float = 0.0


class Part(msgspec.Struct, kw_only=True):
    """A part that is not done. batches: the IDs of all batches made from it; the last one counts.

    The fields from due_s on are not in the file; times are monotonic. due_s: when the part is next
    made into a batch, or its batch is polled. wait_s: the wait before that poll. is_alone: whether
    no other batch was running when this run made the part's batch. seen, finished: the batch's
    status and the number of its finished rows at the last poll. silent_since_s: since when the
    provider has not responded, or has not returned the results of a batch that is over.
    over_since_s: since when the batch has been over and the provider has responded. lost_since_s:
    since when the provider has not known the batch. is_gone: whether the batch's results count as
    lost for that reason. moved: in a part from an earlier run, the keys of rows that a later part
    holds.
    """

    number: int
    rows: int
    url: str
    model: str
    worst: Amount
    state: str = "spooled"
    file: str = ""
    batches: list[str] = []
    making_wall_s: float = 0.0
    due_s: float = 0.0
    wait_s: float | None = None
    is_alone: bool = False
    seen: str = "sent"
    finished: int = 0
    silent_since_s: float | None = None
    over_since_s: float | None = None
    lost_since_s: float | None = None
    is_gone: bool = False
    moved: set[int] | None = None

    @property
    def route(self) -> tuple[str, str]:
        """The path and the model that all rows of the part share."""
        return self.url, self.model

    def begin_polls(self, now_s: float) -> None:
        """Schedules the first poll of the part's batch."""
        self.seen, self.finished = "sent", 0
        self.silent_since_s = self.over_since_s = self.lost_since_s = None
        self.wait_s = next_look_s(None)
        self.due_s = now_s + self.wait_s

    def is_silent(self, now_s: float) -> bool:
        """Records that the provider does not respond; returns whether that has lasted an hour."""
        self.silent_since_s = self.silent_since_s or now_s
        return now_s - self.silent_since_s >= MOST_SILENCE_S


class Ledger:
    """Keeps the notes about an output's batches. The caller holds the output's lock.

    parts: the parts that are not done, by number. spent: the cost of those that are done. run,
    place: the run's name and its provider, empty if not noted. pace: of rows that are sent live;
    None if not noted. The constructor reads the file and creates nothing; it raises DamagedLedger,
    or JournalError if the file cannot be read. `begin` opens the file for `write`; `close` ends
    that.
    """

    def __init__(self, output: Output) -> None:
        self.folder = output.state_path / "batches"
        self.path = _path_of(output)
        self.parts: dict[int, Part] = {}
        self.spent = NOTHING
        self.run = ""
        self.place = ""
        self.pace: Pace | None = None
        self._last_part = 0
        self._fd: int | None = None
        self._size = 0
        self._load()

    @property
    def reserved(self) -> Amount:
        """The amount reserved for all parts that are not done."""
        return reduce(Amount.plus, (part.worst for part in self.parts.values()), NOTHING)

    def part_path(self, number: int) -> Path:
        """Returns the path of the file that holds a part's rows."""
        return self.folder / f"part-{number}.jsonl"

    def results_paths(self, number: int) -> list[Path]:
        """Returns the paths of the files that hold a part's answers and errors until it is done."""
        return [self.folder / f"part-{number}.{kind}" for kind in ("output", "errors")]

    def check_parts(self) -> None:
        """Checks the files of the parts that are not done. Blocks.

        Raises DamagedLedger if a file is missing or its number of rows is wrong, JournalError if it
        cannot be read.
        """
        for number, part in self.parts.items():
            path = self.part_path(number)
            with telling(path):
                if not path.exists():
                    hint = f"restore the folder {self.folder}; or {_HINT}"
                    raise DamagedLedger(f"{path} is missing", hint=hint)
                with path.open("rb") as file:
                    if sum(1 for _ in file) != part.rows:
                        raise DamagedLedger(f"{path} is damaged", hint=_HINT)

    def next_number(self) -> int:
        """Returns the number of a new part; only `forget` allows numbers to be reused."""
        self._last_part += 1
        return self._last_part

    def begin(self, place: str) -> None:
        """Opens the file for writing, and names the run if it has no name at this provider. Blocks.

        Removes all files in the folder except those of open parts. place: the provider; ignored
        while parts are open, because their batches are at the provider already noted. Raises
        JournalError.
        """
        with telling(self.path):
            self.folder.mkdir(exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            sync_name(self.path)
            sync_name(self.folder)
            self.remove_strays()
        if not self.run or (self.place != place and not self.parts):
            self.write(Note(at="run", run=secrets.token_hex(8), place=place))

    def remove_strays(self) -> None:
        """Removes all files in the folder except those of open parts. Blocks. Raises OSError."""
        known = {self.part_path(number) for number in self.parts}
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path not in known:
                path.unlink()

    def forget(self) -> None:
        """Removes the notes of earlier runs; all of their parts must be done. Blocks."""
        with telling(self.path):
            self.path.unlink(missing_ok=True)
        self.run, self.place, self.pace = "", "", None
        self.spent, self._size, self._last_part = NOTHING, 0, 0

    @staticmethod
    def put_aside(output: Output) -> None:
        """Renames the ledger of an output to the first free `batches.old-N.jsonl`. Blocks."""
        path = _path_of(output)
        with telling(path):
            path.rename(free_name(path, "old"))
            sync_name(path)

    def write(self, note: Note) -> None:
        """Writes a note durably, then applies it. Blocks. Raises JournalError."""
        assert self._fd is not None
        if note.at == "part":
            with telling(self.folder):
                sync_name(self.part_path(note.part))
        text = msgspec.json.encode(note)
        line = b"%b %08x\n" % (text, zlib.crc32(text))
        try:
            write_all(self._fd, [line])
            os.fsync(self._fd)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._size += len(line)
        self._take(note)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _load(self) -> None:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            note = _note(line)
            if note is None:
                is_last = self._size + len(line) == len(data)
                if is_last and (not line.endswith(b"\n") or b"\0" in line):
                    # The process died, or the power failed, before this line was synced, so no step
                    # followed. JSON never contains a zero byte, but lost blocks read as zeros.
                    return
                raise DamagedLedger(f"line {number} of {self.path} is damaged", hint=_HINT)
            self._size += len(line)
            self._take(note)

    def _take(self, note: Note) -> None:
        number = note.part
        self._last_part = max(self._last_part, number)
        match note.at:
            case "run":
                # A pace measured at another provider does not apply to this one.
                self.run, self.place, self.pace = note.run, note.place, None
            case "pace":
                self.pace = Pace(note.row_s, note.row_tokens)
            case "part":
                self.parts[number] = Part(
                    number=number, rows=note.rows, url=note.url, model=note.model, worst=note.worst
                )
            case "done":
                self.parts.pop(number, None)
                self.spent = self.spent.plus(note.spent)
            case _:
                part = self.parts[number]
                part.state = _STATES.get(note.at, part.state)
                part.file = note.file or part.file
                part.making_wall_s = note.wall_s or part.making_wall_s
                part.batches += [note.batch] if note.batch else []


def _path_of(output: Output) -> Path:
    return output.state_path / "batches.jsonl"


def _note(line: bytes) -> Note | None:
    """Returns the note of a line; None if its checksum is wrong or its end is missing."""
    text, _, check = line.rstrip(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or check != b"%08x" % zlib.crc32(text):
        return None
    try:
        return msgspec.json.decode(text, type=Note)
    except msgspec.DecodeError:
        return None
