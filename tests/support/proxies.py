"""squid and tinyproxy as the tests' own: each on a free port of 127.0.0.1, keeping nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import starting

_AUTHENTICATE = "/usr/lib/squid/basic_ncsa_auth"
USER = "me"
# tinyproxy takes letters and digits only.
PASSWORDS = {"squid": "p@ss:word-4711", "tinyproxy": "password4711"}


def path_of(program: str) -> str | None:
    """Where it is installed, also if /usr/sbin is not on the user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def why_not(program: str) -> str:
    """Why it cannot run here; empty if it can."""
    is_there = path_of(program) and (program != "squid" or Path(_AUTHENTICATE).exists())
    return "" if is_there else f"{program} is not installed: apt-get install {program}"


class ProxyServer:
    """A running proxy; `kill` and `start` again keep its port.

    asks: for USER and its own `password`. certificate: a folder with `right.pem` and `right.key`,
    by which squid is reached over TLS.
    """

    def __init__(
        self, program: str, folder: Path, *, asks: bool = False, certificate: Path | None = None
    ) -> None:
        self.port = starting.free_port()
        # What squid calls its shared memory: two of one name take it from each other as they start.
        self._name = f"redline{secrets.token_hex(8)}"
        self.password = PASSWORDS[program]
        self._ports = folder / "ports"
        scheme = "http" if certificate is None else "https"
        self.place = f"127.0.0.1:{self.port}"
        self.url = f"{scheme}://{self.place}"
        settings = folder / f"{program}.conf"
        command = path_of(program)
        assert command is not None
        if program == "squid":
            lines = self._squid(folder, asks=asks, certificate=certificate)
            self._command = [command, "-N", "-d", "0", "-n", self._name, "-f", str(settings)]
        else:
            lines = [f"Port {self.port}", "Listen 127.0.0.1", "MaxClients 200", "LogLevel Critical"]
            lines += [f"BasicAuth {USER} {self.password}"] * asks
            self._command = [command, "-d", "-c", str(settings)]
        settings.write_text("\n".join([*lines, ""]), "utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs and takes connections on return."""
        self.process = starting.start(self._command, lambda: starting.answers(self.port))

    def kill(self) -> None:
        if self.process is not None:
            starting.end(self.process, signal.SIGKILL)
            self.process = None

    def close(self) -> None:
        """Kills it, and removes what squid leaves in memory."""
        self.kill()
        for left in Path("/dev/shm").glob(f"{self._name}-*"):
            left.unlink()

    def connections(self) -> int:
        """How many connections squid has taken and done with, in whole or in part."""
        # The first one is the look at whether it runs.
        return len(set(self._ports.read_text("utf-8").split())) - 1

    def _squid(self, folder: Path, *, asks: bool, certificate: Path | None) -> list[str]:
        lines = [
            f"http_port {self.place}",
            "pid_filename none",
            "logformat ports %>p",
            f"access_log stdio:{self._ports} logformat=ports",
            "cache_log /dev/null",
            "cache deny all",
            "cache_mem 1 MB",
            "max_filedescriptors 1024",
            "shutdown_lifetime 0 seconds",
            "acl tests src 127.0.0.1",
        ]
        if certificate is not None:
            pair = f"tls-cert={certificate}/right.pem tls-key={certificate}/right.key"
            lines[0] = f"https_port {self.place} {pair}"
        if asks:
            words = folder / "passwords"
            digest = subprocess.run(
                ["openssl", "passwd", "-apr1", self.password],
                check=True,
                capture_output=True,
                text=True,
            )
            words.write_text(f"{USER}:{digest.stdout}", "utf-8")
            lines += [
                f"auth_param basic program {_AUTHENTICATE} {words}",
                "auth_param basic realm tests",
                "auth_param basic children 1",
                "acl known proxy_auth REQUIRED",
                "http_access deny !known",
            ]
        return [*lines, "http_access allow tests", "http_access deny all"]


@contextmanager
def proxy_server(
    program: str, *, asks: bool = False, certificate: Path | None = None
) -> Iterator[ProxyServer]:
    """A running squid or tinyproxy."""
    folder = Path(tempfile.mkdtemp(prefix="redline-proxy-"))
    # squid gives up root's rights, and reads passwords without them.
    folder.chmod(0o777)
    server = ProxyServer(program, folder, asks=asks, certificate=certificate)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)
