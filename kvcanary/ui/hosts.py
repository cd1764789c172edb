"""What keeps pages of others away from this dashboard, which a browser on the same machine reaches for them.

A page anywhere can let its own name lead to 127.0.0.1, and a browser then takes this dashboard for a part of that page. The name is still in
the request, so a server without a login answers only to names of this machine and to those that its operator gave: the host of KVCANARY_URL,
or Streamlit's server.allowedHosts. Nor may another page show the dashboard inside itself, where a click could be lured to any button.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import streamlit as st
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvcanary.ui import access

_URL = "KVCANARY_URL"


class KnownHosts:
    """Refuses requests and sessions by a foreign name, and frames of foreign pages; in front of everything that the server answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or session."""
        if scope["type"] not in ("http", "websocket") or answers_to(_host(scope), st.get_option("server.address"), os.environ):
            await self._app(scope, receive, lambda message: send(_unframed(message)))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            said = f"This dashboard answers to localhost. If it is meant to be reached by another name, set {_URL} to that address.\n"
            await PlainTextResponse(said, status_code=421)(scope, receive, send)


def answers_to(host: str, address: str | None, environment: Mapping[str, str]) -> bool:
    """Whether a request that names this host, without a port, is answered by a server on this address.

    Any name is where others reach the server anyway, which then says so when it starts, and where a login asks who is there: its cookie
    belongs to one name.
    """
    if access.login() is not None or not access.is_loopback(address) or not host:
        return True
    given = (_name(environment.get(_URL, "")), st.get_option("browser.serverAddress") or "", *st.get_option("server.allowedHosts"))
    return access.is_loopback(host) or host.endswith(".localhost") or any(fnmatchcase(host, pattern.lower()) for pattern in given)


def _unframed(message: Message) -> Message:
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [*message.get("headers", ()), (b"content-security-policy", b"frame-ancestors 'self'")]}


def _host(scope: Scope) -> str:
    value = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return _name(f"//{value.decode('latin-1')}") or value.decode("latin-1")


def _name(url: str) -> str:
    """The host of an address in small letters, empty where there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
