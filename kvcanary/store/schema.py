"""The tables of the store, in their newest form; migrations/versions leads there from every earlier one.

A run's own files are its truth and lie in a folder. The tables hold what is asked of many runs at once, and what people add to one: notes,
labels, deletion.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)

RUNS = Table(
    "runs",
    METADATA,
    Column("id", String(80), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("created_s", Double, nullable=False),
    Column("started_s", Double),
    Column("finished_s", Double),
    Column("device", String(40), nullable=False),
    Column("machine", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("note", Text, nullable=False, server_default=""),
    Column("points", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # The data folder that the run was made in, and where its files were copied to, empty where they only lie in that folder.
    Column("origin", String(40), nullable=False),
    Column("files_url", Text, nullable=False, server_default=""),
    # Set while a deletion can still be undone.
    Column("deleted_s", Double),
    # Who made it, as 'name (key)' and by the key alone, and whether nobody else may see it: 0 or 1.
    Column("owner", Text, nullable=False, server_default=""),
    Column("owner_key", Text, nullable=False, server_default=""),
    Column("private", Integer, nullable=False, server_default="0"),
    # The last two say who may see a run, so that an index alone answers that too.
    *(Index(None, name, "created_s", "private", "owner_key") for name in ("kind", "state", "verdict", "machine", "model")),
    # Counting and paging read these alone, without the rows.
    Index(None, "deleted_s", "created_s", "id", "private", "owner_key"),
)

# Apart from the runs, so that a list reads little.
DOCUMENTS = Table(
    "documents",
    METADATA,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("document", Text, nullable=False),
)

LABELS = Table(
    "labels",
    METADATA,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("label", String(60), primary_key=True),
    Index(None, "label"),
)

# Data folders that runs were made in; scanned_ns is the folder's change time when it was last read, 0 before that.
FOLDERS = Table(
    "folders",
    METADATA,
    Column("origin", String(40), primary_key=True),
    Column("host", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("scanned_ns", BigInteger, nullable=False),
)
