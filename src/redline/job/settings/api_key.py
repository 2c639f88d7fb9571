"""Reads API keys, and decides whether the one in OPENAI_API_KEY may be sent to a URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

import msgspec

from redline.calls import is_http_url
from redline.errors import ConfigError

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
_OPENAI_HOST = "openai.com"
# A header with one of these names carries credentials, so its request needs no key.
_CREDENTIALS = re.compile(
    r"(proxy-)?authorization|(.*-)?api-?key|(.*-)?(access-|auth-)?token", re.I
)
# The usual form of a variable's name. API keys also contain lowercase letters, dashes or dots.
_USUAL_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_NAME_THE_KEY = f'api_key=os.environ["{KEY_VARIABLE}"] sends it there, api_key="" sends none'


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables from which a job may take the URL of its server and its API key.

    environ: values by name, including those in `.env`. dotenv: names of the variables that only
    `.env` sets. key_hint: how to set a key for another host, as a hint in errors.
    """

    environ: Mapping[str, str]
    dotenv: frozenset[str] = frozenset()
    key_hint: str = _NAME_THE_KEY

    def is_pair(self, one: str, other: str) -> bool:
        """Whether two variables that are set are both in the environment, or both in `.env`."""
        return (one in self.dotenv) == (other in self.dotenv)


def default_key(key: str | None, base_url: str, headers: Iterable[str], hint: str) -> str | None:
    """Returns the key if it may be sent to `base_url`; None if there is none, or none is needed.

    key: the key in OPENAI_API_KEY. headers: names of the request's headers; another host needs no
    key if one of them carries credentials. hint: shown with the error. Raises ConfigError if the
    key may not be sent to the host. If `base_url` is not a URL, the result is None: Endpoint then
    raises its own error.
    """
    if not key or not is_http_url(base_url):
        return None
    host = (urlsplit(base_url).hostname or "").rstrip(".")
    if host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}") or is_this_machine(host):
        return key
    if any(_CREDENTIALS.fullmatch(name) for name in headers):
        return None
    raise ConfigError(
        f"the key in {KEY_VARIABLE} is not sent to {host}: it goes only to OpenAI, this machine, "
        f"and an {URL_VARIABLE} from the same source (the environment or .env)",
        hint=hint,
    )


def key_in(variable: str, said: str, environ: Mapping[str, str], hint: str = "") -> str:
    """Returns the value of an environment variable that is expected to hold a key.

    said: the setting that names the variable. hint: an alternative to exporting it. Raises
    ConfigError if the variable is empty or not set. The error quotes `variable` only if it has the
    usual form of a name: otherwise it may be the key itself.
    """
    value = environ.get(variable)
    if value:
        return value
    if _USUAL_NAME.fullmatch(variable):
        raise ConfigError(
            f"{said} names {variable}, which is empty or not set",
            hint=f"export {variable}=...{hint}",
        )
    raise ConfigError(
        f"{said} takes the name of an environment variable, but no variable with this name is set",
        hint=f"export a variable that holds the key, and pass its name, such as {KEY_VARIABLE}",
    )


def is_this_machine(host: str) -> bool:
    """Whether the host is `localhost`, a name under it, or an address like 127.0.0.1 or 0.0.0.0."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified
