"""What the server does beside the pages: health, metrics, warnings at the start, and errors that a stranger may see."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import streamlit as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from streamlit import net_util, runtime

from kvcanary.errors import KvCanaryError
from kvcanary.store.database import Store
from kvcanary.store.home import open_store
from kvcanary.ui import access, warmup

METRICS_TOKEN = "KVCANARY_METRICS_TOKEN"
# A list longer than this is counted, but its durations are of the newest runs alone.
_LISTED = 10_000

_log = logging.getLogger("kvcanary")
_registry = CollectorRegistry()
_store_errors = Counter("kvcanary_store_errors", "Times that the store could not be read.", registry=_registry)
_page_errors = Counter("kvcanary_page_errors", "Errors of pages that nobody expected.", registry=_registry)


class _Jobs(Collector):
    """Sessions and jobs at the moment of the scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily | SummaryMetricFamily]:
        yield GaugeMetricFamily("kvcanary_sessions", "Browser sessions that are connected.", value=sessions())
        try:
            rows, damaged = _store().list(limit=_LISTED), len(_store().damaged())
        except (KvCanaryError, OSError):
            _store_errors.inc()
            return
        counts: dict[tuple[str, str], int] = defaultdict(int)
        seconds: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            counts[row.kind, row.state.value] += 1
            if row.started_s is not None and row.finished_s is not None:
                seconds[row.kind].append(row.finished_s - row.started_s)
        jobs = GaugeMetricFamily("kvcanary_jobs", "Stored runs by kind and state.", labels=("kind", "state"))
        for key, count in sorted(counts.items()):
            jobs.add_metric(key, count)
        yield jobs
        durations = SummaryMetricFamily("kvcanary_job_duration_seconds", "Seconds that finished runs took.", labels=("kind",))
        for kind, taken in sorted(seconds.items()):
            durations.add_metric((kind,), count_value=len(taken), sum_value=sum(taken))
        yield durations
        yield GaugeMetricFamily("kvcanary_damaged_runs", "Run folders that cannot be read.", value=damaged)


_registry.register(_Jobs())


@lru_cache(maxsize=1)
def _store() -> Store:
    # Not the one of the pages: Streamlit's caches belong to its script threads. A store that cannot be opened is tried again.
    return open_store(os.environ)


def sessions() -> int:
    """Browser sessions that are connected to this server."""
    if not runtime.exists():
        return 0
    stats = runtime.get_instance().stats_mgr.get_stats(["active_sessions"])
    return sum(int(getattr(stat, "value", 0)) for stat in stats.get("active_sessions", ()))


def health(_request: Request) -> Response:
    """200 while pages can be served and runs be stored, else 503 with the reason."""
    problems = []
    try:
        store = _store()
        store.count(state="running")
        if not os.access(store.root, os.W_OK):
            problems.append(f"data folder {store.root} cannot be written")
    except (KvCanaryError, OSError) as error:
        _store_errors.inc()
        problems.append(str(error))
    body = {"status": "ok" if not problems else "failing", "sessions": sessions(), "problems": problems}
    return JSONResponse(body, status_code=503 if problems else 200)


def metrics(request: Request) -> Response:
    """Prometheus text. Counts alone, no names; asks for a bearer token where KVCANARY_METRICS_TOKEN is set."""
    token = os.environ.get(METRICS_TOKEN, "")
    if token and not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
        return PlainTextResponse(f"send the token of {METRICS_TOKEN} as a bearer token\n", status_code=401)
    return Response(generate_latest(_registry), media_type=CONTENT_TYPE_LATEST)


def plan_address(request: Request) -> Response:
    """To the first page, whose only address for Streamlit is the root, with the settings that the link holds."""
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


def routes() -> list[Route]:
    """Routes beside the pages. They are plain functions, so they run in threads and do not hold up the pages."""
    under = str(st.get_option("server.baseUrlPath") or "").strip("/")
    # Health and metrics are for who reaches this server directly; a page is for who comes through a proxy.
    return [Route("/healthz", health), Route("/metrics", metrics), Route(f"/{under}/plan" if under else "/plan", plan_address)]


def shared() -> bool:
    """Whether others than the operator of this machine may be looking."""
    return access.login() is not None or not access.is_loopback(st.get_option("server.address"))


def on_error(error: Exception) -> bool:
    """An error that no page expected: a reference for who sees it, the traceback for who runs the server.

    Streamlit's option client.showErrorDetails, set to full, shows a developer the traceback on the page too, which nobody else may see.
    """
    reference = secrets.token_hex(4)
    _page_errors.inc()
    _log.error("page error, reference %s", reference, exc_info=error)
    st.error(f"This page met an error that it did not expect. Its reference in the server's log is {reference}.", icon=":material/error:")
    return shared() or st.get_option("client.showErrorDetails") != "full"


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[None]:
    """Says plainly what the server's address means for who can come in, and starts the warm-up."""
    # Streamlit would ask a host on the internet for this machine's address when a page of another origin knocks. Nothing here calls home.
    net_util._external_ip = ""
    address = st.get_option("server.address")
    if access.login() is None and not access.is_loopback(address):
        where = address or "every address of this machine"
        _log.warning(
            "kvcanary listens on %s without a login: whoever reaches it can read runs and start jobs here. "
            "Set KVCANARY_OIDC_ISSUER (see SECURITY.md), or put it behind something that asks who is there.",
            where,
        )
    stopping = threading.Event()
    warmup.start(stopping)
    yield
    stopping.set()


def app_secrets() -> dict[str, Any] | None:
    """Secrets of st.login, None without a login; a wrong setting ends the server before it listens, in one sentence."""
    try:
        settings = access.login()
    except KvCanaryError as error:
        raise SystemExit(f"kvcanary: {error}") from None
    return None if settings is None else settings.secrets()
