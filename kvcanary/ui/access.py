"""Who may use the dashboard: nobody is asked on the own machine; on a shared one, people log in by OpenID Connect and stand on a list.

All of it is set by the environment, so that no secret lies in the source tree:

    KVCANARY_OIDC_ISSUER         address of the provider, or of its .well-known/openid-configuration; setting it turns the login on
    KVCANARY_OIDC_CLIENT_ID      as the provider gave it out
    KVCANARY_OIDC_CLIENT_SECRET  as the provider gave it out
    KVCANARY_URL                 address of this dashboard as browsers see it; the provider must allow <address>/oauth2callback
    KVCANARY_COOKIE_SECRET       32 or more random characters that sign the login cookie; the same for every restart
    KVCANARY_ALLOW               who may come in, separated by commas: ada@example.org, @example.org, group:operators
    KVCANARY_ADMINS              who may also see and change what belongs to others; same form
    KVCANARY_OIDC_GROUPS_CLAIM   name of the claim with groups; default groups
    KVCANARY_OIDC_TRUST_EMAIL    1 for a provider that checks e-mail addresses without saying so (no email_verified claim)
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from kvcanary.errors import ConfigError
from kvcanary.escape import markdown_text
from kvcanary.lab.records import owner_key

COOKIE_SECRET_LENGTH = 32
_ISSUER, _ALLOW, _ADMINS, _URL = "KVCANARY_OIDC_ISSUER", "KVCANARY_ALLOW", "KVCANARY_ADMINS", "KVCANARY_URL"
_CLIENT_ID, _CLIENT_SECRET, _COOKIE = "KVCANARY_OIDC_CLIENT_ID", "KVCANARY_OIDC_CLIENT_SECRET", "KVCANARY_COOKIE_SECRET"
_GROUPS, _TRUST = "KVCANARY_OIDC_GROUPS_CLAIM", "KVCANARY_OIDC_TRUST_EMAIL"
_METADATA = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Login:
    """A provider and the lists. Rules are lower-case: an address, '@' and a domain, or 'group:' and a name."""

    metadata_url: str
    client_id: str
    client_secret: str
    redirect_uri: str
    cookie_secret: str
    allow: frozenset[str]
    admins: frozenset[str]
    groups_claim: str = "groups"
    trust_email: bool = False

    def secrets(self) -> dict[str, Any]:
        """What st.login wants to find as secrets."""
        return {
            "auth": {
                "redirect_uri": self.redirect_uri,
                "cookie_secret": self.cookie_secret,
                "client_id": self.client_id,
                "client_secret": self.client_secret,
                "server_metadata_url": self.metadata_url,
            }
        }

    def user(self, claims: Mapping[str, Any]) -> User:
        """What the lists say of somebody whom the provider has named by these claims of its token."""
        held = self._held(claims)
        admin = bool(held & self.admins)
        name = str(claims.get("email") or claims.get("preferred_username") or claims.get("name") or claims.get("sub") or "")
        # An e-mail address can be changed or given to another; the subject of an issuer is neither.
        key = f"{claims.get('iss', '')}#{claims.get('sub', '')}"
        return User(key=key, name=name, allowed=admin or bool(held & self.allow), admin=admin)

    def _held(self, claims: Mapping[str, Any]) -> set[str]:
        """The rules that these claims fulfil. Only an address that the provider has checked counts."""
        held = set()
        email = str(claims.get("email") or "").strip().lower()
        verified = claims.get("email_verified")
        if email.count("@") == 1 and (verified is True or verified == "true" or (verified is None and self.trust_email)):
            held |= {email, email[email.index("@") :]}
        groups = claims.get(self.groups_claim) or ()
        listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, list | tuple) else []
        return held | {f"group:{str(group).lower()}" for group in listed}


@dataclass(frozen=True, slots=True)
class User:
    """Somebody in front of the dashboard. key is unique and stable, name is for reading."""

    key: str
    name: str
    allowed: bool
    admin: bool

    @property
    def owner(self) -> str:
        """How a job names who started it: name for reading, key for comparing; empty without a login."""
        return f"{self.name} ({self.key})" if self.key else ""

    def may_change(self, owner: str) -> bool:
        """Whether a job or run of that owner may be stopped, deleted or hidden by this person."""
        return self.admin or (bool(self.key) and owner_key(owner) == self.key)


def name_of(owner: str) -> str:
    """What to call an owner: 'ada@example.org' of 'ada@example.org (key)'."""
    return owner.rpartition(" (")[0] or owner


LOCAL = User(key="", name="", allowed=True, admin=True)


def read_login(environment: Mapping[str, str]) -> Login | None:
    """The login of an environment, None where it names no provider. ConfigError names the variable that is missing or wrong."""
    given = {name: environment.get(name, "").strip() for name in (_ISSUER, _CLIENT_ID, _CLIENT_SECRET, _URL, _COOKIE, _ALLOW)}
    if not given[_ISSUER]:
        started = [name for name in (_CLIENT_ID, _ALLOW, environment.get(_ADMINS) and _ADMINS) if name and environment.get(name)]
        if started:
            raise ConfigError(
                f"{started[0]} is set but {_ISSUER} is not, so nobody would be asked to log in; set {_ISSUER} or unset the other"
            )
        return None
    for name, value in given.items():
        if not value:
            raise ConfigError(f"{name} must be set when {_ISSUER} is")
    for name in (_ISSUER, _URL):
        _check_url(name, given[name])
    if len(given[_COOKIE]) < COOKIE_SECRET_LENGTH:
        raise ConfigError(
            f"{_COOKIE} must have at least {COOKIE_SECRET_LENGTH} characters, got {len(given[_COOKIE])}; make one with openssl rand -hex 32"
        )
    issuer = given[_ISSUER].rstrip("/")
    return Login(
        metadata_url=issuer if issuer.endswith(_METADATA) else issuer + _METADATA,
        client_id=given[_CLIENT_ID],
        client_secret=given[_CLIENT_SECRET],
        redirect_uri=f"{given[_URL].rstrip('/')}/oauth2callback",
        cookie_secret=given[_COOKIE],
        allow=_rules(_ALLOW, given[_ALLOW]),
        admins=_rules(_ADMINS, environment.get(_ADMINS, "")),
        groups_claim=environment.get(_GROUPS, "").strip() or "groups",
        trust_email=environment.get(_TRUST, "").strip() == "1",
    )


def is_loopback(address: str | None) -> bool:
    """Whether a server on this address can be reached from its own machine alone. No address means every one."""
    if not address:
        return False
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1)
def login() -> Login | None:
    """The login of this server, read once when it starts."""
    return read_login(os.environ)


def user() -> User:
    """Who is in front of this session; everybody is the operator where there is no login."""
    settings = login()
    if settings is None:
        return LOCAL
    claims = st.user.to_dict()
    return settings.user(claims) if claims.get("is_logged_in") else User(key="", name="", allowed=False, admin=False)


def kept_to() -> str:
    """What to add where something is kept: who sees it on a shared server."""
    return " Only you and administrators see it until you share it there." if user().key else ""


def admit() -> None:
    """Before anything of a page: ends the run with a way to log in for those who are not let in."""
    if login() is None or (who := user()).allowed:
        return
    st.title("kvcanary", anchor=False)
    if who.key:
        st.error(f"{markdown_text(who.name)} is logged in, but not on the list of this server. Ask who runs it to add you.")
        st.button("Log out", on_click=st.logout, key="logout")
    else:
        st.markdown("This server is shared: log in to use it.")
        st.button("Log in", on_click=st.login, key="login", type="primary")
    st.stop()


def _check_url(name: str, text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{name} must be an address such as https://example.org, got {text[:100]!r}")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigError(f"{name} must start with https:// unless it is on this machine, got {text[:100]!r}")


def _rules(name: str, text: str) -> frozenset[str]:
    rules = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    for rule in rules:
        if "@" not in rule.removeprefix("group:") and not rule.startswith("group:"):
            raise ConfigError(f"{name} takes addresses, @domains and group:names, got {rule[:60]!r}")
        if rule in ("group:", "@") or rule.endswith("@"):
            raise ConfigError(f"{name}: {rule!r} names nobody")
    return rules
