"""How a command declares, groups and reads its flags."""

from redline.cli.flags.command import Group, stated
from redline.cli.flags.engine import settings_in, settings_of
from redline.cli.flags.flags import Word, flag
