"""Reading /server_info over HTTP from a real server on this machine, also one that means harm."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.importers import server_info
from kvcanary.importers.server_info import HOSTS_VARIABLE, fetch, parse_hosts
from tests.importers.samples import SERVER_INFO

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server with one answer per path; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.command, self.path, dict(self.headers)))
                answer = server.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                else:
                    answer(self)

            def log_message(self, *_arguments: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.place = f"127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def reply(body: bytes, kind: str = "application/json", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirect(location: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.end_headers()

    return answer


def refused(url: str, *allowed: str) -> str:
    with pytest.raises(ImportTextError) as caught:
        fetch(url, allowed_hosts=parse_hosts(" ".join(allowed)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_server_info_of_a_running_server(server: Server) -> None:
    server.answers["/server_info"] = reply(SERVER_INFO.encode())
    result = fetch(f"http://{server.place}", allowed_hosts={server.place})
    assert result.fields["pool_slot_count"].value == 250_000
    assert result.fields["req_to_token_pool_size"].value == 48
    [(method, path, headers)] = server.asked
    assert (method, path) == ("GET", "/server_info")
    assert not {name.lower() for name in headers} - {"host", "accept", "accept-encoding", "connection"}


@pytest.mark.parametrize("allowed", ["{host}", "{host}:{port}", "127.0.0.0/8", "LOCALHOST 127.0.0.1"])
def test_forms_of_the_list(server: Server, allowed: str) -> None:
    server.answers["/get_server_info?x=1"] = reply(SERVER_INFO.encode())
    entries = parse_hosts(allowed.format(host="127.0.0.1", port=server.port))
    assert fetch(f"http://{server.place}/get_server_info?x=1", allowed_hosts=entries).kind == "server_info"


def test_localhost_is_this_machine(server: Server) -> None:
    server.answers["/server_info"] = reply(SERVER_INFO.encode())
    assert fetch(f"http://localhost:{server.port}/", allowed_hosts={f"localhost:{server.port}"}).kind == "server_info"


def test_off_unless_enabled(server: Server) -> None:
    assert refused(f"http://{server.place}").startswith(f"fetching is off; set {HOSTS_VARIABLE}")
    assert not server.asked


@pytest.mark.parametrize(
    "allowed", ["gpu-7", "127.0.0.1:1", "127.0.0.2", "10.0.0.0/8", "127.0.0.1.example.org", "::1", "not/a/network", "[::1]:80"]
)
def test_a_host_that_is_not_listed_is_not_asked(server: Server, allowed: str) -> None:
    assert f"{server.place} is not among the allowed hosts; add it to {HOSTS_VARIABLE}" in refused(f"http://{server.place}", allowed)
    assert not server.asked


def test_answers_that_are_no_server_info(server: Server) -> None:
    url, listed = f"http://{server.place}/server_info", server.place
    assert f"{url} answered 404" in refused(url, listed)
    server.answers["/server_info"] = reply(b"<html><body>welcome</body></html>", "text/html")
    assert f"{url} holds nothing that is known" in refused(url, listed)
    server.answers["/server_info"] = reply(b"python -m sglang.launch_server --tp 2", "text/plain")
    assert "answered with something else than server_info (command)" in refused(url, listed)
    server.answers["/server_info"] = reply(SERVER_INFO.encode()[:200])
    assert f"{url} begins like JSON but breaks off" in refused(url, listed)
    server.answers["/server_info"] = reply(b"")
    assert f"{url} is empty" in refused(url, listed)


def test_a_compressed_answer_is_never_unpacked(server: Server) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    server.answers["/server_info"] = reply(bomb, Content_Encoding="gzip")
    assert "is binary" in refused(f"http://{server.place}", server.place)


def test_an_answer_without_end_is_cut(server: Server) -> None:
    sent: list[int] = []

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            sent.extend(handler.wfile.write(b"[" * (1 << 20)) for _ in range(1000))

    server.answers["/server_info"] = flood
    assert "answered with more than 2 MiB, which is no server_info" in refused(f"http://{server.place}", server.place)
    assert len(sent) < 100


def trickle(send: Callable[[bytes], Any], sent: list[bytes], head: bytes, piece: bytes) -> None:
    """Send a head and then a thousand pieces, one in 20 ms, until the peer is gone."""
    with contextlib.suppress(OSError):
        for part in (head, *[piece] * 1000):
            send(part)
            sent.append(part)
            time.sleep(0.02)


@pytest.mark.parametrize(("head", "piece"), [(b"HTTP/1.0 200 OK\r\n\r\n", b" "), (b"HTTP/1.0 200 OK\r\n", b"X-More: 1\r\n")])
def test_a_server_that_drips_gets_the_time_of_one_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, head: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(server_info, "TIMEOUT_S", 0.4)
    sent: list[bytes] = []
    server.answers["/server_info"] = lambda handler: trickle(handler.connection.sendall, sent, head, piece)
    assert "did not answer within 0.4 s" in refused(f"http://{server.place}", server.place)
    assert len(sent) < 200


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_port_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr(server_info, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer within 0.3 s" in refused(f"{scheme}://{place}", place)


def test_a_handshake_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_info, "TIMEOUT_S", 0.4)
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def handshake() -> None:
            peer, _ = listening.accept()
            with peer:
                # The head of a record that promises 16 384 bytes.
                trickle(peer.sendall, sent, b"\x16\x03\x03\x40\x00", b"\x02")

        threading.Thread(target=handshake, daemon=True).start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        assert "did not answer within 0.4 s" in refused(f"https://{place}", place)
    assert len(sent) < 200


def test_a_port_that_nobody_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    assert f"http://{place}/server_info cannot be read: " in refused(f"http://{place}", place)


def test_redirects_stay_on_the_host(server: Server) -> None:
    server.answers["/server_info"] = redirect("/get_server_info")
    server.answers["/get_server_info"] = reply(SERVER_INFO.encode())
    assert fetch(f"http://{server.place}", allowed_hosts={server.place}).kind == "server_info"
    server.answers["/server_info"] = redirect("/server_info")
    assert "redirects more than 3 times" in refused(f"http://{server.place}", server.place)
    assert len(server.asked) == 2 + 4


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("http://elsewhere.example/server_info", "elsewhere.example:80 is not among the allowed hosts"),
        ("http://169.254.169.254/latest/meta-data", "169.254.169.254:80 is not among the allowed hosts"),
        ("http://listed.example/server_info", "redirects to another host (http://listed.example/server_info)"),
        ("file:///etc/passwd", "the URL must begin with http:// or https://, got 'file'"),
        ("http://user:pw@127.0.0.1/", "must not hold a user name"),
        ("//[", "not a URL"),
    ],
)
def test_redirects_elsewhere_are_not_followed(server: Server, location: str, sentence: str) -> None:
    server.answers["/server_info"] = redirect(location)
    assert sentence in refused(f"http://{server.place}", server.place, "listed.example")
    assert len(server.asked) == 1


def test_a_redirect_to_another_port_or_scheme_is_another_host(server: Server) -> None:
    server.answers["/server_info"] = redirect(f"http://127.0.0.1:{server.port + 1}/server_info")
    assert "redirects to another host" in refused(f"http://{server.place}", "127.0.0.1")
    server.answers["/server_info"] = redirect(f"https://{server.place}/server_info")
    assert "redirects to another host" in refused(f"http://{server.place}", server.place)


def names(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let every name lead to these addresses; returns the list of names that were looked up."""
    looked_up: list[str] = []

    def getaddrinfo(host: str, port: int, *_rest: Any, **_kinds: Any) -> list[tuple[Any, ...]]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return looked_up


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "fe80::1", "fd00::5", "::ffff:10.0.0.1",
     "64:ff9b::a00:1", "64:ff9b:1::a00:1", "::10.0.0.1", "::ffff:0:10.0.0.1",
     "2002:a00:1::1", "fec0::5", "3fff::5", "5f00::5", "192.0.0.192", "192.88.99.1",
     "168.63.129.16"],
)  # fmt: skip
def test_a_name_that_leads_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, server: Server, address: str) -> None:
    names(monkeypatch, address)
    said = refused(f"http://gpu-7:{server.port}", "gpu-7")
    assert f"gpu-7 leads to {address}, which is not public; add {address} to {HOSTS_VARIABLE} if it is meant" in said
    assert not server.asked


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch)
    assert "the name has no address" in refused("http://gpu-7/", "gpu-7")
    names(monkeypatch, "9.9.9.9", "10.1.2.3")
    assert "gpu-7 leads to 10.1.2.3" in refused("http://gpu-7/", "gpu-7")


def test_a_private_address_that_is_listed_is_reached_by_its_name_with_one_look_up(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    server.answers["/server_info"] = reply(SERVER_INFO.encode())
    looked_up = names(monkeypatch, "127.0.0.1")
    result = fetch(f"http://gpu-7:{server.port}", allowed_hosts=parse_hosts(f"gpu-7:{server.port}, 127.0.0.0/8"))
    assert result.kind == "server_info"
    assert looked_up == ["gpu-7", "127.0.0.1"]
    assert server.asked[0][2]["Host"] == f"gpu-7:{server.port}"


def test_a_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_arguments: Any, **_kinds: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "http://gpu-7/server_info cannot be read: [Errno -2] Name or service not known" in refused("http://gpu-7", "gpu-7")


def test_a_resolver_that_hangs_gets_the_time_of_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_info, "TIMEOUT_S", 0.2)
    hold = threading.Event()
    answered: list[bool] = []

    def getaddrinfo(*_arguments: Any, **_kinds: Any) -> list[Any]:
        hold.wait(10)
        answered.append(True)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "did not answer within 0.2 s" in refused("http://gpu-7", "gpu-7")
    assert not answered
    hold.set()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://gpu-7/x", "must begin with http:// or https://, got 'ftp'"),
        ("gpu-7", "must begin with http:// or https://"),
        ("http://", "must begin with http:// or https://"),
        ("http://a:b@gpu-7/", "must not hold a user name or password"),
        ("http://gpu-7/a b", "plain ASCII without blanks"),
        ("http://gpu-7/\u00e9", "plain ASCII without blanks"),
        ("http://gpu-7:99999/", "not a URL"),
        ("http://[/", "not a URL"),
        ("http://gpu-7/x\r\nHost: other", "plain ASCII without blanks"),
        ("http://gpu-7@elsewhere.example/", "must not hold a user name or password"),
        ("http://elsewhere.example/#@gpu-7/", "elsewhere.example:80 is not among the allowed hosts"),
        ("http://elsewhere.example\\@gpu-7/", "must not hold a user name"),
    ],
)
def test_urls_that_are_refused(url: str, sentence: str) -> None:
    assert sentence in refused(url, "gpu-7")


def test_the_name_of_an_answer_hides_its_query(server: Server) -> None:
    server.answers["/server_info?token=secret"] = reply(json.dumps({"model_path": "m", "tp_size": 2, "page_size": 4}).encode())
    assert (
        fetch(f"http://{server.place}/server_info?token=secret", allowed_hosts={server.place}).name == f"http://{server.place}/server_info"
    )
