"""Who is let in, by the claims of a provider; the login itself is tested in a browser (tests/browser/test_access.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvcanary.errors import ConfigError, JobError, StoreError
from kvcanary.lab.campaign_job import CampaignSpec
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.ui import access, services
from kvcanary.ui.access import LOCAL, User, is_loopback, read_login
from tests.stored_runs import store_run

ENVIRONMENT = {
    "KVCANARY_OIDC_ISSUER": "https://login.example.org/realm",
    "KVCANARY_OIDC_CLIENT_ID": "kvcanary",
    "KVCANARY_OIDC_CLIENT_SECRET": "s",
    "KVCANARY_URL": "https://canary.example.org/",
    "KVCANARY_COOKIE_SECRET": "0123456789abcdef0123456789abcdef",
    "KVCANARY_ALLOW": "Ada@Example.org, @lab.example, group:Operators",
    "KVCANARY_ADMINS": "group:admins",
}
APP = str(Path(__file__).parents[2] / "app.py")


def claims(**given: Any) -> dict[str, Any]:
    return {"iss": "https://login.example.org/realm", "sub": "17", "is_logged_in": True, **given}


@pytest.mark.parametrize(
    ("given", "allowed", "admin"),
    [
        ({"email": "ada@example.org", "email_verified": True}, True, False),
        ({"email": "ADA@example.org", "email_verified": True}, True, False),
        ({"email": "ada@example.org", "email_verified": False}, False, False),
        ({"email": "ada@example.org"}, False, False),
        ({"email": "bob@lab.example", "email_verified": True}, True, False),
        ({"email": "bob@other.lab.example", "email_verified": True}, False, False),
        ({"email": "bob@lab.example.evil.example", "email_verified": True}, False, False),
        ({"email": "a@evil.example@lab.example", "email_verified": True}, False, False),
        ({"email": "eve@evil.example", "email_verified": True, "groups": ["operators"]}, True, False),
        ({"groups": "operators"}, True, False),
        ({"groups": ["Admins"]}, True, True),
        ({"groups": {"operators": 1}}, False, False),
        ({"email": "group:operators", "email_verified": True}, False, False),
        ({"preferred_username": "ada@example.org", "name": "ada@example.org"}, False, False),
        ({}, False, False),
    ],
)
def test_the_list_decides(given: dict[str, Any], allowed: bool, admin: bool) -> None:
    login = read_login(ENVIRONMENT)
    assert login is not None
    who = login.user(claims(**given))
    assert (who.allowed, who.admin) == (allowed, admin)


def test_a_provider_that_checks_addresses_silently_can_be_trusted() -> None:
    login = read_login({**ENVIRONMENT, "KVCANARY_OIDC_TRUST_EMAIL": "1"})
    assert login is not None
    assert login.user(claims(email="ada@example.org")).allowed
    assert not login.user(claims(email="ada@example.org", email_verified=False)).allowed


def test_what_st_login_gets() -> None:
    login = read_login(ENVIRONMENT)
    assert login is not None
    assert login.secrets()["auth"] == {
        "redirect_uri": "https://canary.example.org/oauth2callback",
        "cookie_secret": ENVIRONMENT["KVCANARY_COOKIE_SECRET"],
        "client_id": "kvcanary",
        "client_secret": "s",
        "server_metadata_url": "https://login.example.org/realm/.well-known/openid-configuration",
    }


def test_no_provider_means_no_login() -> None:
    assert read_login({}) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"KVCANARY_OIDC_ISSUER": ""}, "KVCANARY_OIDC_CLIENT_ID is set but KVCANARY_OIDC_ISSUER is not"),
        ({"KVCANARY_ALLOW": ""}, "KVCANARY_ALLOW must be set"),
        ({"KVCANARY_ALLOW": "everybody"}, "KVCANARY_ALLOW takes addresses"),
        ({"KVCANARY_ALLOW": "@"}, "KVCANARY_ALLOW: '@' names nobody"),
        ({"KVCANARY_ADMINS": "group:"}, "KVCANARY_ADMINS: 'group:' names nobody"),
        ({"KVCANARY_COOKIE_SECRET": "short"}, "KVCANARY_COOKIE_SECRET must have at least 32 characters, got 5"),
        ({"KVCANARY_URL": "canary.example.org"}, "KVCANARY_URL must be an address"),
        ({"KVCANARY_URL": "http://canary.example.org"}, "KVCANARY_URL must start with https://"),
        ({"KVCANARY_OIDC_ISSUER": "http://login.example.org"}, "KVCANARY_OIDC_ISSUER must start with https://"),
    ],
)
def test_a_wrong_setting_names_its_variable(changes: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_login({**ENVIRONMENT, **changes})
    assert named in str(error.value)
    assert ENVIRONMENT["KVCANARY_COOKIE_SECRET"] not in str(error.value)


@pytest.mark.parametrize(
    ("address", "alone"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("", False), (None, False), ("192.0.2.7", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_which_addresses_others_can_reach(address: str | None, alone: bool) -> None:
    assert is_loopback(address) is alone


def test_a_job_is_stopped_by_its_owner_or_an_administrator() -> None:
    ada, bob = User("iss#1", "ada@example.org", True, False), User("iss#2", "ada@example.org", True, False)
    assert ada.may_change(ada.owner)
    assert not bob.may_change(ada.owner), "the same name is not the same person"
    assert not ada.may_change("")
    assert replace(bob, admin=True).may_change(ada.owner)
    assert LOCAL.may_change(ada.owner)
    assert LOCAL.may_change("")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path))
    services.jobs.clear()
    access.login.cache_clear()
    yield tmp_path
    services.jobs.clear()
    access.login.cache_clear()


def test_stopping_is_refused_below_the_button_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = User("iss#1", "ada", True, False), User("iss#2", "bob", True, False)
    small = {"pool_slot_count": 5000, "req_to_token_pool_size": 8, "cuda_graph_max_bs": 8, "max_seq_len_per_req": 512}
    monkeypatch.setattr(access, "user", lambda: ada)
    run_id = services.start(BenchmarkSpec(settings=small))
    assert services.runs().record(run_id).owner == ada.owner
    monkeypatch.setattr(access, "user", lambda: bob)
    with pytest.raises(JobError, match="was started by somebody else"):
        services.stop(run_id)
    monkeypatch.setattr(access, "user", lambda: ada)
    services.stop(run_id)
    assert not services.jobs().wait(run_id, 60).state.active


def runs_page(**query: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.switch_page("pages/runs.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def said(app: AppTest) -> list[str]:
    return [str(getattr(element, "value", "") or getattr(element, "proto", "")) for element in app.main]


def listed(app: AppTest) -> list[str]:
    return [run for frame in app.dataframe for run in frame.value.get("run", [])]


def test_what_somebody_keeps_is_theirs_until_they_share_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    ada, bob = User("iss#1", "ada@example.org", True, False), User("iss#2", "bob@example.org", True, False)
    monkeypatch.setattr(access, "user", lambda: ada)
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.button(key="plan_keep").click().run()
    assert any("Only you and administrators see it until you share it there." in text for text in said(app))
    (kept,) = [row.id for row in services.runs().list()]
    monkeypatch.setattr(access, "user", lambda: bob)
    app = runs_page(run=kept)
    assert kept not in listed(app)
    assert not any("ada" in text for text in said(app))
    monkeypatch.setattr(access, "user", lambda: ada)
    app = runs_page(run=kept)
    assert (listed(app), app.toggle(key=f"runs.private.{kept}").value) == ([kept], True)
    app.toggle(key=f"runs.private.{kept}").set_value(False).run()
    monkeypatch.setattr(access, "user", lambda: bob)
    app = runs_page(run=kept)
    assert (listed(app), app.button(key="runs.delete").disabled) == ([kept], True)
    with pytest.raises(KeyError):
        app.toggle(key=f"runs.private.{kept}")
    for change in (services.delete, lambda run_id: services.set_private(run_id, True)):
        with pytest.raises(StoreError, match="was made by somebody else; only they or an administrator"):
            change(kept)
    monkeypatch.setattr(access, "user", lambda: replace(bob, admin=True))
    services.delete(kept)
    services.restore(kept)


def test_what_goes_on_with_a_private_campaign_is_private_and_others_cannot(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = User("iss#1", "ada", True, False), User("iss#2", "bob", True, False)
    run = store_run(home, 1, kind="campaign", owner=ada.owner)
    services.runs().set_private(run, True)
    monkeypatch.setattr(
        JobManager, "start", lambda _manager, spec, owner: store_run(home, 2, kind="campaign", spec=asdict(spec), owner=owner)
    )
    spec = CampaignSpec(continues=run)
    monkeypatch.setattr(access, "user", lambda: bob)
    with pytest.raises(StoreError, match="no run"):
        services.start(spec)
    monkeypatch.setattr(access, "user", lambda: ada)
    more = services.start(spec)
    monkeypatch.setattr(access, "user", lambda: bob)
    assert services.runs().list() == []
    with pytest.raises(StoreError, match="no run"):
        services.slots(more)


def test_the_toggle_shows_what_is_stored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = User("iss#1", "ada", True, False)
    run = store_run(home, 1, owner=ada.owner)
    monkeypatch.setattr(access, "user", lambda: ada)
    services.set_private(run, True)
    app = runs_page(run=run)
    assert app.toggle(key=f"runs.private.{run}").value
    services.set_private(run, False)
    assert not app.run().toggle(key=f"runs.private.{run}").value


@pytest.mark.parametrize("page", ["benchmark", "fault_lab"])
def test_a_link_to_a_private_run_of_another_leads_to_none(home: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    kind = {"benchmark": "benchmark", "fault_lab": "campaign"}[page]
    run = store_run(home, 1, kind=kind, owner="ada (iss#1)", sentence="Ada's secret.")
    services.runs().set_private(run, True)
    monkeypatch.setattr(access, "user", lambda: User("iss#2", "bob", True, False))
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.switch_page(f"pages/{page}.py")
    app.query_params["run"] = run
    app.run()
    assert not app.exception
    assert not any("secret" in text for text in said(app))
    assert any(f"There is no run {run}" in text for text in said(app))


@pytest.mark.parametrize(("page", "button"), [("benchmark", "run"), ("fault_lab", "run_campaign")])
def test_each_page_starts_its_job_for_who_sits_there(home: Path, monkeypatch: pytest.MonkeyPatch, page: str, button: str) -> None:
    ada, owners = User("iss#1", "ada", True, False), []

    def start(_manager: JobManager, _spec: Any, owner: str = "") -> str:
        owners.append(owner)
        raise JobError("not today")

    monkeypatch.setattr(access, "user", lambda: ada)
    monkeypatch.setattr(JobManager, "start", start)
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.switch_page(f"pages/{page}.py").run()
    app.button(key=button).click().run()
    assert owners == [ada.owner]


@pytest.mark.parametrize("page", ["plan", "benchmark", "fault_lab", "inspect_log"])
def test_no_page_shows_anything_before_the_login(home: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(access, "user", lambda: User("", "", False, False))
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    assert [title.value for title in app.title] == ["kvcanary"]
    assert [button.label for button in app.button] == ["Log in"]
    assert not app.text_input
    assert not app.sidebar.button


def test_a_page_file_run_by_itself_is_no_way_around(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(access, "user", lambda: User("", "", False, False))
    app = AppTest.from_file(str(Path(APP).parent / "pages" / "plan.py"), default_timeout=60).run()
    assert not app.text_input
    assert not app.button


def test_who_is_not_on_the_list_is_told_so_and_can_leave(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(access, "user", lambda: User("iss#9", "eve@evil.example", False, False))
    app = AppTest.from_file(APP, default_timeout=60).run()
    assert "not on the list of this server" in app.error[0].value
    assert [button.label for button in app.button] == ["Log out"]
