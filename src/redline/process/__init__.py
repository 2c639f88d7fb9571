"""Manages the process and its files: signals, threads, locks, durable writes, safe printing."""

from redline.process.changes import Changes, end_tasks
from redline.process.connections import keep_alive
from redline.process.files import (
    GONE,
    LockedFile,
    copy_mode,
    drop_unfinished,
    free_name,
    make_like,
    open_alone,
    replace_file,
    sync_name,
    telling,
    unwritable,
    write_all,
    write_file,
)
from redline.process.loading import load_object
from redline.process.open_files import raise_limit, raise_limit_fully
from redline.process.output import (
    cells,
    clipped,
    counted,
    duration,
    lasting,
    listed,
    printable,
    printable_json,
    three_digits,
)
from redline.process.shared_table import MOST_PROCESSES, SharedTable
from redline.process.signals import (
    Unblocked,
    end_at_once,
    end_at_second,
    ends_task,
    first_of,
    on_signals,
    run_until_told,
)
from redline.process.threads import DaemonThreads, RaisedStop, in_thread, is_in_loop
