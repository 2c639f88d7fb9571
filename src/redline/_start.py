"""Prepares a process that runs the redline command, before the other modules are imported.

During the imports, Ctrl-C prints one line and ends the process with status 130, and the garbage
collector is off. This module is imported first. It does nothing in a program that merely imports
redline.
"""

import gc
import os
import signal
import sys
import threading

# The delay before an ignored interrupt is repeated: long enough for a callback to return.
_REPEAT_S = 0.01


def is_command() -> bool:
    """Whether this process is `redline` or `python -m redline`, judged by its arguments."""
    if sys.argv[:1] == ["-m"]:
        return ("-m", "redline") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return bool(sys.argv) and os.path.basename(sys.argv[0]) in ("redline", "redline.exe")


def collect_rarely() -> None:
    """Makes the garbage collector run rarely, since reference counting frees nearly all garbage.

    With CPython 3.11's default threshold of 700 objects, the collector takes a quarter of a busy
    client's time. A thousand calls in flight and their connections are 50,000 objects, all in use.
    """
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def end(number: int, frame: object) -> None:
    """Handles SIGINT during the imports: ends the process with status 130; nothing is open yet."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(130)


def give_way() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, and repeats an interrupt that Python ignores."""
    if signal.getsignal(signal.SIGINT) is end:
        sys.unraisablehook = _repeat_interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _repeat_interrupt(ignored: "sys.UnraisableHookArgs") -> None:
    """Interrupts again if Python ignored a KeyboardInterrupt; reports other errors as usual.

    Python ignores errors in weakref callbacks and `__del__`, and every import runs a weakref
    callback.
    """
    if ignored.exc_type is KeyboardInterrupt:
        # A thread repeats the interrupt later, since an error raised here would also be ignored.
        # On a busy machine, the thread may interrupt before `start` has returned; the loop then
        # starts another thread.
        while True:
            try:
                threading.Timer(_REPEAT_S, _interrupt_main).start()
                return
            except KeyboardInterrupt:
                continue
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


if is_command():
    # Imports create almost no garbage, and scanning their objects takes a tenth of the start-up
    # time.
    gc.disable()
if (
    is_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, end)
