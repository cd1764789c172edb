"""A name that leads to this machine is not enough to be answered by it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import streamlit as st
from starlette.responses import PlainTextResponse
from starlette.types import Message

from kvcanary.ui import access, hosts

OPTIONS: dict[str, Any] = {"server.address": "127.0.0.1", "browser.serverAddress": "localhost", "server.allowedHosts": []}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVCANARY_URL", raising=False)
    monkeypatch.setattr(access, "login", lambda: None)
    monkeypatch.setattr(st, "get_option", OPTIONS.__getitem__)


def ask(host: bytes | None, kind: str = "http") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": f"{kind}.connect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (PlainTextResponse("page")(scope, receive, send) if kind == "http" else send({"type": "websocket.accept"}))

    scope = {"type": kind, "method": "GET", "path": "/", "headers": [] if host is None else [(b"host", host)]}
    # In a thread of its own: once a browser test has run, playwright keeps an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, hosts.KnownHosts(app)(scope, receive, send)).result()
    return sent


@pytest.mark.parametrize(
    "host", [b"localhost:8501", b"LOCALHOST", b"127.0.0.1:8501", b"127.9.9.9", b"[::1]:8501", b"a.localhost:1", b"localhost.", None]
)
def test_names_of_this_machine(host: bytes | None) -> None:
    assert ask(host)[0]["status"] == 200
    assert ask(host, "websocket") == [{"type": "websocket.accept"}]


FOREIGN = (
    b"evil.example:8501", b"127.0.0.1.evil.example", b"localhost.evil.example", b"10.0.0.7", b"[fe80::1]:8501", b"[",
    b"localhost@evil.example", b"evil.example#localhost", b"evillocalhost", b"\xff",
)  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_names(host: bytes) -> None:
    refused = ask(host)
    assert refused[0]["status"] == 421
    assert b"set KVCANARY_URL" in refused[1]["body"]
    assert ask(host, "websocket") == [{"type": "websocket.close", "code": 1008}]


def test_a_name_that_the_operator_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCANARY_URL", "https://Dash.example.org:8443/kv")
    assert ask(b"dash.example.org")[0]["status"] == 200
    assert [ask(host)[0]["status"] for host in (b"example.org", None)] == [421, 200]
    monkeypatch.setitem(OPTIONS, "server.allowedHosts", ["other.example", "*.Example.net"])
    assert [ask(host)[0]["status"] for host in (b"other.example", b"a.example.net", b"example.net")] == [200, 200, 421]


def test_where_others_reach_the_server_or_a_login_asks_any_name_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts.answers_to("dash.example.org", "0.0.0.0", {})
    assert hosts.answers_to("dash.example.org", None, {})
    assert not hosts.answers_to("dash.example.org", "127.0.0.1", {})
    monkeypatch.setattr(access, "login", lambda: object())
    assert hosts.answers_to("dash.example.org", "127.0.0.1", {})


def test_no_other_page_may_show_it_inside_itself() -> None:
    assert (b"content-security-policy", b"frame-ancestors 'self'") in ask(b"localhost")[0]["headers"]
