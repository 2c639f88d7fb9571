"""Stores results on disk: row identity, lines with checksums, group commit, manifest and lock."""

from redline.journal import manifest
from redline.journal.conflicts import check_place, owner_of_failures
from redline.journal.flaws import FAIL_ON, all_flawed, flaws_of, flaws_text
from redline.journal.identity import (
    Identifier,
    KeySet,
    MessageKeys,
    is_other,
    keyed_rows,
    mark_of,
    marks_of,
)
from redline.journal.journal import Journal, NotKept
from redline.journal.lines import (
    Brief,
    Result,
    error_fields,
    failure_writer,
    json_of,
    line_writer,
)
from redline.journal.lock import OutputLock, is_held
from redline.journal.manifest import Manifest
from redline.journal.output import FORMATS, Output, has_old_names, is_state, names_of, stem_of
from redline.journal.results_file import ResultsFile, ResultsLost, take_out
from redline.journal.rewrite import put_in_order, set_all_aside, set_aside
from redline.journal.sound_lines import (
    Stretch,
    has_sound_line,
    opened_lines,
    read_keys,
    read_results,
    read_stretches,
)
