"""Resumes, verifies and repairs a job's outputs; records their spending and mirrors them."""

from redline.job.outputs.account import AccountFile, path_of, read_spent, remove_account
from redline.job.outputs.checking import check_written
from redline.job.outputs.mirror import Mirror, fetched
from redline.job.outputs.repairing import Repair, repair
from redline.job.outputs.resume import another_input, manifest_of, near, open_journal
from redline.job.outputs.verification import Verification, verify
