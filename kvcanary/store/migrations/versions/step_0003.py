"""Owners of runs, and runs that only their owner sees; owners that the documents name are taken over."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """From 0002. Runs that are there stay visible to everybody, as they were."""
    for name in ("owner", "owner_key"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("private", sa.Integer, nullable=False, server_default="0"))
    # With who may see a run in them, an index alone answers what somebody asks.
    filtered = ((name, "created_s") for name in ("kind", "state", "verdict", "machine", "model"))
    for columns in (*filtered, ("deleted_s", "created_s", "id")):
        seen = (*columns, "private", "owner_key")
        op.drop_index(f"ix_runs_{'_'.join(columns)}", "runs")
        op.create_index(f"ix_runs_{'_'.join(seen)}", "runs", [*seen])
    documents = sa.table("documents", sa.column("run_id"), sa.column("document"))
    runs = sa.table("runs", sa.column("id"), sa.column("owner"), sa.column("owner_key"))
    connection = op.get_bind()
    for run_id, document in connection.execute(sa.select(documents).where(documents.c.document.not_like('%"owner": ""%'))).all():
        owner = str(json.loads(document).get("owner") or "")
        if owner:
            key = owner.rpartition(" (")[2].removesuffix(")")
            connection.execute(sa.update(runs).where(runs.c.id == run_id).values(owner=owner, owner_key=key))
