"""Declares, groups and reads the flags of commands."""

from redline.cli.flags.command import Group, read_flags, stated
from redline.cli.flags.engine import ENGINE_FLAGS, settings_in, settings_of
from redline.cli.flags.flags import Word, job_flags, with_helps
from redline.job.settings import choice, flag, switch, time, whole
