"""Read /server_info of a running server: one GET, only from hosts that were allowed, nothing sent but the request.

Off unless enabled: the caller passes the allowed hosts, which the UI and the command line take from KVCANARY_FETCH_HOSTS.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Collection
from urllib.parse import SplitResult, urljoin, urlsplit

from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import read_bytes
from kvcanary.importers.result import ImportResult

TIMEOUT_S = 5.0
MAX_BYTES = 2 << 20
MAX_REDIRECTS = 3
HOSTS_VARIABLE = "KVCANARY_FETCH_HOSTS"
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_PATH = "/server_info"


def parse_hosts(text: str) -> frozenset[str]:
    """The hosts of KVCANARY_FETCH_HOSTS: names or name:port, separated by commas or blanks."""
    return frozenset(entry.lower() for entry in text.replace(",", " ").split())


def fetch(url: str, *, allowed_hosts: Collection[str]) -> ImportResult:
    """GET a URL and read what comes; ImportTextError says in one sentence why not.

    allowed_hosts: 'gpu-7' allows every port of a host, 'gpu-7:30000' one. A URL without a path asks for /server_info. At most 5 s and
    2 MiB in all; redirects are followed only to the same host and port.
    """
    hosts = {host.lower() for host in allowed_hosts}
    if not hosts:
        raise ImportTextError(
            f"fetching is off; set {HOSTS_VARIABLE} to the hosts that may be asked, for example {HOSTS_VARIABLE}=gpu-7:30000"
        )
    target = _checked(url, hosts)
    deadline = time.monotonic() + TIMEOUT_S
    for _ in range(MAX_REDIRECTS + 1):
        body, location = _get(target, deadline)
        if location is None:
            return read_bytes(body, name=_name(target))
        following = _checked(urljoin(target.geturl(), location), hosts)
        if (following.hostname, _port(following)) != (target.hostname, _port(target)):
            raise ImportTextError(f"{_name(target)} redirects to another host ({_name(following)}); give that address if it is meant")
        target = following
    raise ImportTextError(f"{_name(target)} redirects more than {MAX_REDIRECTS} times")


def _checked(url: str, hosts: Collection[str]) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, _port(parts)
    except ValueError as error:
        raise ImportTextError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ImportTextError(f"the URL must begin with http:// or https://, got {parts.scheme[:20]!r}")
    if parts.username or parts.password:
        raise ImportTextError("the URL must not hold a user name or password")
    if any(ord(char) < 33 or ord(char) > 126 for char in parts.path + parts.query + host):
        raise ImportTextError("the URL must be plain ASCII without blanks")
    shown = f"[{host}]" if ":" in host else host
    if host not in hosts and f"{shown}:{port}" not in hosts:
        raise ImportTextError(f"{shown}:{port} is not among the allowed hosts; add it to {HOSTS_VARIABLE}")
    return parts._replace(path=_DEFAULT_PATH) if parts.path in ("", "/") else parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _name(parts: SplitResult) -> str:
    """Address without a query, which may hold a secret."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _get(target: SplitResult, deadline: float) -> tuple[bytes, str | None]:
    """Body, or the place a redirect points to."""
    name = _name(target)
    connection = _connection(target, max(0.05, deadline - time.monotonic()))
    watchdog: threading.Timer | None = None
    try:
        connection.connect()
        # Socket timeouts restart with every byte; a server that drips must not get more time than the rest.
        watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [connection.sock])
        watchdog.daemon = True
        watchdog.start()
        path = target.path + (f"?{target.query}" if target.query else "")
        connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
        response = connection.getresponse()
        if response.status in _REDIRECTS and (location := response.getheader("Location")):
            return b"", location
        if response.status != 200:
            raise ImportTextError(f"{name} answered {response.status} {response.reason[:60]}")
        body = response.read(MAX_BYTES + 1)
        if time.monotonic() >= deadline:
            raise TimeoutError
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            raise ImportTextError(f"{name} did not answer within {TIMEOUT_S:g} s") from None
        raise ImportTextError(f"{name} cannot be read: {str(error)[:120] or type(error).__name__}") from None
    finally:
        if watchdog is not None:
            watchdog.cancel()
        connection.close()
    if len(body) > MAX_BYTES:
        raise ImportTextError(f"{name} answered with more than {MAX_BYTES >> 20} MiB, which is no server_info")
    return body, None


def _cut(sock: socket.socket) -> None:
    """End a connection from outside; whoever reads from it sees its end."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _connection(target: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    host = target.hostname or ""
    if target.scheme == "https":
        return http.client.HTTPSConnection(host, _port(target), timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, _port(target), timeout=timeout_s)
