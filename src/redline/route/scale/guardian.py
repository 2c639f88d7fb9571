"""Runs a command, and ends every process that it has started, even if the parent is killed.

    python -I -S guardian.py PARENT GRACE_S COMMAND...

running  the command is running
ending   stdin has ended, PARENT is no longer the parent, or SIGTERM, SIGINT or SIGHUP arrived:
         every process below this one gets SIGTERM, and after GRACE_S seconds SIGKILL, until none is
         left
over     the command has ended: processes that it leaves behind get SIGKILL

The exit status is that of the command; 128 plus the number of the signal, if a signal ended the
command; 127 if the command does not exist, 126 if it cannot be run for another reason; 0 if PARENT
was gone before the command began, or if the command could not be ended. On Linux the guardian is a
subreaper (prctl(2)): processes that leave their group or session, or whose parents die, remain
below the guardian, which signals only processes below it. On other systems it signals the command's
process group.

The module imports only a few modules of the standard library: each replica has a guardian, which
must stay small.
"""

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

# prctl(2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_HAS_SUBREAPERS = sys.platform == "linux"
_TOLD_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Seconds between checks of the parent. Its death usually ends stdin, but another process may hold
# the other end of the pipe.
_LOOK_S = 1.0
_STEP_S = 0.05
# A process that SIGKILL does not end in this time waits for a device or belongs to another user.
_MOST_KILLING_S = 30.0
# When stdout, the log file, exceeds this size, its older half is dropped.
_MOST_LOG_BYTES = 64 * 2**20


class Guardian:
    """The process above a replica's command.

    parent: the process id of the process that must stay the parent. grace_s: the time between
    SIGTERM and SIGKILL. status: the command's exit status once it has ended, otherwise None.
    """

    def __init__(self, parent: int, grace_s: float) -> None:
        self.status: int | None = None
        self._parent = parent
        self._grace_s = grace_s
        self._is_told = False
        self._pid = 0
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _TOLD_BY:
            signal.signal(number, self._be_told)

    def run(self, command: list[str]) -> int:
        """Runs the command; returns its exit status once it and all its descendants are gone."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != self._parent:
            return 0
        guardian = os.getpid()
        # A signal that arrives before the child has reset its handlers must not be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD_BY)
        self._pid = os.fork()
        if not self._pid:
            _become(command, guardian)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD_BY)
        while self.status is None and not self._is_over():
            self._wait(_LOOK_S)
            self._reap()
            _trim(1)
        self._end()
        return 0 if self.status is None else self.status

    def _be_told(self, *_: object) -> None:
        self._is_told = True

    def _is_over(self) -> bool:
        """Returns whether the command is no longer needed."""
        if self._is_told or os.getppid() != self._parent:
            return True
        if not select.select([0], [], [], 0)[0]:
            return False
        try:
            return not os.read(0, 4096)
        except OSError:
            return True

    def _wait(self, most_s: float) -> None:
        """Waits until stdin is readable, a signal arrives, or `most_s` seconds have passed."""
        watched = [self._woken] if self._is_told or self.status is not None else [self._woken, 0]
        if self._woken in select.select(watched, [], [], most_s)[0]:
            os.read(self._woken, 4096)

    def _reap(self) -> None:
        """Collects children that have ended, including adopted ones."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def _end(self) -> None:
        """Ends the command and all its descendants; gives up on those that cannot be killed."""
        self._is_told = True
        if self.status is None:
            self._signal(signal.SIGTERM)
            self._until_gone(self._grace_s)
        until_s = time.monotonic() + _MOST_KILLING_S
        while self._signal(signal.SIGKILL) and time.monotonic() < until_s:
            self._until_gone(_STEP_S)

    def _until_gone(self, most_s: float) -> None:
        until_s = time.monotonic() + most_s
        while self._signal(0) and (left_s := until_s - time.monotonic()) > 0:
            self._wait(min(_STEP_S, left_s))
            self._reap()

    def _signal(self, number: int) -> bool:
        """Sends a signal (0: none) to the remaining processes; returns whether any is left."""
        if not _HAS_SUBREAPERS:
            return _is_sent(os.killpg, self._pid, number)
        found = False
        for pid, begun in descendants(os.getpid()):
            # The process id may belong to another process by now.
            if number and _stat(pid)[19:20] == [begun]:
                _is_sent(os.kill, pid, number)
            found = True
        return found


def descendants(top: int) -> Iterator[tuple[int, bytes]]:
    """Yields the running processes below `top`: the pid, and the start time in clock ticks."""
    below: dict[int, list[tuple[int, bytes, bytes]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            below.setdefault(int(stat[1]), []).append((int(name), stat[0], stat[19]))
    left = [top]
    while left:
        for pid, state, begun in below.get(left.pop(), ()):
            left.append(pid)
            if state not in b"ZX":
                yield pid, begun


def _stat(pid: int) -> list[bytes]:
    """Returns the fields of /proc/PID/stat from the state on (proc(5)); [] if PID has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _is_sent(send: Callable[[int, int], None], pid: int, number: int) -> bool:
    """Sends a signal; returns whether the process or group exists and may be signalled."""
    try:
        send(pid, number)
    except OSError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    """Calls prctl(2) with its first two arguments; does nothing if this is not Linux."""
    if _HAS_SUBREAPERS:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(command: list[str], guardian: int) -> None:
    """Turns this process into the command, in a new session; it is killed if the guardian dies."""
    status = 127
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*_TOLD_BY, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD_BY)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.getppid() == guardian:
            os.execvp(command[0], command)
    except OSError as error:
        status = 127 if error.errno == errno.ENOENT else 126
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(status)


def _trim(fd: int) -> None:
    """Drops the older half of a log that has become too long."""
    size = os.fstat(fd).st_size
    if size > _MOST_LOG_BYTES:
        kept = os.pread(fd, size, size - _MOST_LOG_BYTES // 2)
        os.ftruncate(fd, 0)
        os.write(fd, kept[kept.find(b"\n") + 1 :])


def guarded(command: Sequence[str], grace_s: float) -> list[str]:
    """Returns the command line that runs `command` below a guardian of this process."""
    python = [sys.executable, "-I", "-S", __file__]
    return [*python, str(os.getpid()), f"{grace_s:g}", *command]


def main() -> int:
    """Runs the command that `sys.argv` contains; returns its exit status."""
    return Guardian(int(sys.argv[1]), float(sys.argv[2])).run(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
