"""Read /server_info of a running server: one GET, only from hosts that were allowed, nothing sent but the request.

Off unless enabled: the caller passes the allowed hosts, which the UI and the command line take from KVCANARY_FETCH_HOSTS. A name is looked up
once, and what is connected to is the address that was checked, so that a name cannot point elsewhere in between.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import read_bytes
from kvcanary.importers.result import ImportKind, ImportResult

TIMEOUT_S = 5.0
MAX_BYTES = 2 << 20
MAX_REDIRECTS = 3
HOSTS_VARIABLE = "KVCANARY_FETCH_HOSTS"
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_PATH = "/server_info"
# Every public IPv6 address lies in here. What lies elsewhere is local, or carries an IPv4 address of any kind through a translator.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Special all the same (IANA's special-purpose registries): protocol assignments, in which clouds keep metadata, 6to4, documentation. And the
# address at which Azure's hosts answer their machines, keys included.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "168.63.129.16/32"),
    )
)

_LOOPBACK = ("127.0.0.0/8", "::1/128")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_hosts(text: str) -> frozenset[str]:
    """The entries of KVCANARY_FETCH_HOSTS, separated by commas or blanks: names, name:port, addresses, networks."""
    return frozenset(entry.lower() for entry in text.replace(",", " ").split())


def fetch(url: str, *, allowed_hosts: Collection[str]) -> ImportResult:
    """GET a URL and read the server_info that comes; ImportTextError says in one sentence why not.

    allowed_hosts: 'gpu-7' allows every port of a host, 'gpu-7:30000' one, '10.0.0.7' an address, '10.0.0.0/8' a network. A name that leads to
    an address which is not public is refused unless that address is allowed too. A URL without a path asks for /server_info. At most 5 s
    and 2 MiB in all; redirects are followed only to the same host and port.
    """
    if not allowed_hosts:
        raise ImportTextError(
            f"fetching is off; set {HOSTS_VARIABLE} to the hosts that may be asked, for example {HOSTS_VARIABLE}=10.0.0.7:30000"
        )
    allowed = _Allowed.parse(allowed_hosts)
    target = _checked(url, allowed)
    deadline = time.monotonic() + TIMEOUT_S
    for _ in range(MAX_REDIRECTS + 1):
        body, location = _get(target, allowed, deadline)
        if location is None:
            return _server_info(body, _name(target))
        following = _checked(location, allowed, base=target.geturl())
        if (following.scheme, following.hostname, _port(following)) != (target.scheme, target.hostname, _port(target)):
            raise ImportTextError(f"{_name(target)} redirects to another host ({_name(following)}); give that address if it is meant")
        target = following
    raise ImportTextError(f"{_name(target)} redirects more than {MAX_REDIRECTS} times")


def _server_info(body: bytes, name: str) -> ImportResult:
    result = read_bytes(body, name=name)
    if result.kind is not ImportKind.SERVER_INFO:
        raise ImportTextError(f"{name} answered with something else than server_info ({result.kind})")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    names: frozenset[str]
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    @classmethod
    def parse(cls, entries: Collection[str]) -> _Allowed:
        """Names and addresses with or without a port; an address or network may also be what a name leads to, and so may localhost's."""
        names = frozenset(entry.lower() for entry in entries)
        networks = []
        for entry in names:
            bare = (
                entry.rpartition("]")[0].lstrip("[") if entry.startswith("[") else entry.split(":")[0] if entry.count(":") == 1 else entry
            )
            for network in _LOOPBACK if bare == "localhost" else (bare,):
                with contextlib.suppress(ValueError):
                    networks.append(ipaddress.ip_network(network))
        return cls(names=names, networks=tuple(networks))

    def host(self, host: str, port: int) -> bool:
        """Whether a URL may name this host and port."""
        if host in self.names or f"{_shown(host)}:{port}" in self.names:
            return True
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(host)
            return any(network.num_addresses > 1 and address in network for network in self.networks)
        return False

    def address(self, address: Address) -> bool:
        """Whether a connection may go to this address: a public one, or one that is listed."""
        return _is_public(address) or any(address in network for network in self.networks)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _SPECIAL)


def _checked(url: str, allowed: _Allowed, *, base: str = "") -> SplitResult:
    try:
        parts = urlsplit(urljoin(base, url.strip()))
        host, port = parts.hostname, _port(parts)
    except ValueError as error:
        raise ImportTextError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ImportTextError(f"the URL must begin with http:// or https://, got {parts.scheme[:20]!r}")
    if parts.username or parts.password:
        raise ImportTextError("the URL must not hold a user name or password")
    if any(ord(char) < 33 or ord(char) > 126 for char in parts.path + parts.query + host):
        raise ImportTextError("the URL must be plain ASCII without blanks")
    if not allowed.host(host, port):
        raise ImportTextError(f"{_shown(host)}:{port} is not among the allowed hosts; add it to {HOSTS_VARIABLE}")
    return parts._replace(path=_DEFAULT_PATH) if parts.path in ("", "/") else parts


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _name(parts: SplitResult) -> str:
    """Address without a query, which may hold a secret."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _get(target: SplitResult, allowed: _Allowed, deadline: float) -> tuple[bytes, str | None]:
    """Body, or the place a redirect points to."""
    name = _name(target)
    try:
        body, location = _exchange(target, _place(target, allowed, deadline), deadline)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            raise ImportTextError(f"{name} did not answer within {TIMEOUT_S:g} s") from None
        raise ImportTextError(f"{name} cannot be read: {str(error)[:120] or type(error).__name__}") from None
    if len(body) > MAX_BYTES:
        raise ImportTextError(f"{name} answered with more than {MAX_BYTES >> 20} MiB, which is no server_info")
    return body, location


def _place(target: SplitResult, allowed: _Allowed, deadline: float) -> str:
    """The address to connect to: all that the host's name leads to have to be allowed."""
    host = target.hostname or ""
    addresses = _look_up(host, _port(target), deadline)
    for address in addresses:
        if not allowed.address(ipaddress.ip_address(address.partition("%")[0])):
            raise ImportTextError(
                f"{_shown(host)} leads to {address}, which is not public; add {address} to {HOSTS_VARIABLE} if it is meant"
            )
    return addresses[0]


def _look_up(host: str, port: int, deadline: float) -> list[str]:
    """Addresses of a name, in the system's order; a resolver that hangs costs no more than the time that is left."""
    answer: queue.Queue[list[str] | OSError] = queue.Queue()

    def ask() -> None:
        try:
            answer.put([str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except OSError as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = answer.get(timeout=max(0.05, deadline - time.monotonic()))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, OSError):
        raise found
    if not found:
        raise OSError("the name has no address")
    return found


def _exchange(target: SplitResult, address: str, deadline: float) -> tuple[bytes, str | None]:
    host, port = target.hostname or "", _port(target)
    sock = socket.create_connection((address, port), timeout=max(0.05, deadline - time.monotonic()))
    # Socket timeouts restart with every byte; a server that drips must not get more time than the rest.
    # TLS takes the socket over, so the watchdog holds a second handle of it.
    handle = sock.dup()
    watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [handle])
    watchdog.daemon = True
    watchdog.start()
    connection = http.client.HTTPConnection(host, port)
    try:
        secure = target.scheme == "https"
        connection.sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host) if secure else sock
        path = target.path + (f"?{target.query}" if target.query else "")
        connection.request("GET", path, headers={"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"})
        response = connection.getresponse()
        if response.status in _REDIRECTS and (location := response.getheader("Location")):
            return b"", location
        if response.status != 200:
            raise ImportTextError(f"{_name(target)} answered {response.status} {response.reason[:60]}")
        body = response.read(MAX_BYTES + 1)
        if time.monotonic() >= deadline:
            raise TimeoutError
        return body, None
    finally:
        watchdog.cancel()
        connection.close()
        sock.close()
        handle.close()


def _cut(sock: socket.socket) -> None:
    """End a connection from outside; whoever reads from it sees its end."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
