"""Reads options from the command line, TOML and Python, and makes a `Job` from them."""

from redline.job.settings import values
from redline.job.settings.alert_settings import parse_alerts
from redline.job.settings.api_key import KEY_VARIABLE, URL_VARIABLE, Environment, key_in
from redline.job.settings.embedded import Embedded, EmbeddedSim
from redline.job.settings.keywords import Keywords, lists_options
from redline.job.settings.option_hints import meant
from redline.job.settings.options import (
    FLAGS,
    OF_ENDPOINT,
    TABLE,
    Kind,
    Option,
    Options,
    choice,
    flag,
    kinds_of,
    options_in,
    read,
    switch,
    time,
    whole,
)
from redline.job.settings.otel_settings import OtelSettings
from redline.job.settings.otel_table import parse_otel
from redline.job.settings.resolve import (
    OPENAI,
    SIM,
    embedded_in,
    endpoint_of,
    job_of,
    make_job,
    no_embedded,
    output_at,
)
from redline.job.settings.settings import BATCHING, BODILESS, Hooks, Job, Prompting
from redline.job.settings.tables import errors_in, refuse_unknown, struct_in
from redline.job.settings.task import (
    NO_MORE_S,
    Answered,
    Ask,
    Following,
    Remembering,
    first_request,
    unsent,
)
from redline.job.settings.toml_file import (
    fields_in,
    read_toml,
    settings_in,
    table_in,
    underscored,
)
from redline.job.settings.values import Flags, Reader, flag_of, reason_of
