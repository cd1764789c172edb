"""The first schema: runs, their documents and labels, and the data folders they come from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "runs",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("verdict", sa.String(20), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("started_s", sa.Double),
        sa.Column("finished_s", sa.Double),
        sa.Column("device", sa.String(40), nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.Column("points", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("origin", sa.String(40), nullable=False),
        sa.Column("files_url", sa.Text, nullable=False, server_default=""),
        sa.Column("deleted_s", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    for name in ("kind", "state", "verdict", "machine", "model"):
        op.create_index(f"ix_runs_{name}_created_s", "runs", [name, "created_s"])
    op.create_index("ix_runs_created_s", "runs", ["created_s"])
    op.create_table(
        "documents",
        sa.Column("run_id", sa.String(80), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_documents"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_documents_run_id", ondelete="CASCADE"),
    )
    op.create_table(
        "labels",
        sa.Column("run_id", sa.String(80), nullable=False),
        sa.Column("label", sa.String(60), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "label", name="pk_labels"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_labels_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_labels_label", "labels", ["label"])
    op.create_table(
        "folders",
        sa.Column("origin", sa.String(40), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("scanned_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("origin", name="pk_folders"),
    )
