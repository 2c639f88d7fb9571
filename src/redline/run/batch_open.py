"""Whether a run goes on with batches, and with whose."""

from __future__ import annotations

from redline.calls.batch_api import BatchApi
from redline.errors import ConfigError
from redline.run import manifest as manifests
from redline.run.batch import BatchRunner
from redline.run.batch_collect import World
from redline.run.batch_ledger import Ledger
from redline.run.output import Output
from redline.run.settings import BATCHING, Job


def open_ledger(job: Job, output: Output, *, is_new: bool) -> Ledger:
    """What earlier runs of the output have with the Batch API. Blocks.

    is_new: there are no results yet. Raises ConfigError where their batches are running and this
    run is of another kind.
    """
    ledger = Ledger(output)
    is_anew = job.restart or is_new
    if not ledger.parts:
        if is_anew:
            ledger.forget()
        return ledger
    what = f"batches of {output.path} are with the provider, {len(ledger.parts)} in all"
    if is_anew:
        raise ConfigError(
            f"{what}, and would be lost",
            hint="with --via live and without --restart, a run cancels them first",
        )
    if not job.via:
        raise ConfigError(
            what, hint="--via batch goes on with them, --via live cancels them and goes on live"
        )
    if ledger.place != place_of(job):
        raise ConfigError(f"{what}: {ledger.place}", hint="give the same --base-url")
    old = manifests.load(output)
    if old is not None and not job.force:
        manifests.check(old, job.manifest(), output)
    return ledger


def batches_of(world: World, ledger: Ledger) -> BatchRunner | None:
    """Who drives the run through batches; None where it is live, and none are left. Blocks."""
    job = world.job
    if job.endpoint is None or (job.via not in BATCHING and not ledger.parts):
        return None
    ledger.begin(place_of(job))
    return BatchRunner(world, ledger, BatchApi(job.endpoint, job.retry))


def place_of(job: Job) -> str:
    """Which provider it is, so that batches are not looked for at another one."""
    assert job.endpoint is not None
    return job.embedded.place if job.embedded is not None else job.endpoint.base_url
