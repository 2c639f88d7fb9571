"""Records the spending of an output's runs with a budget, in a file that outlives the process.

The file is one line of fixed length, overwritten in place: the amount spent plus the worst-case
cost of every call in flight. It is written before each send and after each settlement, so if the
process is killed, no spending is lost, and calls that were in flight count as spent. It is synced
before the results of the calls, so a power loss undoes only the spending of calls whose results are
lost as well.
"""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import msgspec

from redline.calls.cost import NOTHING, Amount
from redline.errors import JournalError
from redline.journal import Output
from redline.process import replace_file, telling

_LINE_BYTES = 160
_HINT = (
    "look up what the provider has billed; then start over with --restart, or run without a budget"
)


class _Line(msgspec.Struct):
    v: int
    picodollars: int
    tokens: int


class AccountFile:
    """The spending file of one output; the caller holds the output's lock, and closes the file.

    is_new: begin at zero, even if an earlier output has left a file. Raises JournalError if the
    file is damaged or cannot be opened: the amount spent is then unknown.
    """

    def __init__(self, output: Output, *, is_new: bool) -> None:
        self.path = path_of(output)
        try:
            if is_new or not self.path.exists():
                replace_file(self.path, lambda fd: _write(fd, NOTHING))
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"cannot open {self.path}: {error.strerror}") from error
        try:
            self.spent = _amount(os.pread(self._fd, _LINE_BYTES + 1, 0), self.path)
        except BaseException:
            os.close(self._fd)
            raise

    def keep(self, committed: Amount) -> None:
        """Writes the money and tokens that are spent or reserved, in total. Raises OSError."""
        _write(self._fd, committed)

    def sync(self) -> None:
        """Makes the written amounts durable. May run in a thread at the same time as `keep`.

        Raises JournalError.
        """
        with telling(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        try:
            self.sync()
        finally:
            # An abandoned call may settle later, and must not write to a file that reuses this
            # descriptor.
            fd, self._fd = self._fd, -1
            os.close(fd)


def path_of(output: Output) -> Path:
    return output.state_path / "spent"


def remove_account(output: Output) -> None:
    """Removes the file that an earlier output of this name has left. Raises JournalError."""
    with telling(path_of(output)):
        path_of(output).unlink(missing_ok=True)


def _write(fd: int, amount: Amount) -> None:
    text = b'{"v":1,"picodollars":%d,"tokens":%d}' % amount
    line = (b"%b %08x" % (text, zlib.crc32(text))).ljust(_LINE_BYTES - 1) + b"\n"
    if os.pwrite(fd, line, 0) != _LINE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_spent(output: Output) -> Amount | None:
    """Returns the amounts that all runs of an output have spent or reserved, in total.

    Returns None if no run had a budget. May be called while a run is writing the file. Raises
    JournalError if the file is damaged or cannot be read.
    """
    path = path_of(output)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    return _amount(data, path)


def _amount(data: bytes, path: Path) -> Amount:
    text, _, check = data.rstrip().rpartition(b" ")
    try:
        if len(data) != _LINE_BYTES or check != b"%08x" % zlib.crc32(text):
            raise JournalError(f"{path} is damaged", hint=_HINT)
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path} is damaged: {error}", hint=_HINT) from error
    return Amount(line.picodollars, line.tokens)
