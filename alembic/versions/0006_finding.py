"""Finding: tags, the index of the log, and the words of messages, calls and named checkpoints

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tag",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "checkpoint_id"],
            ["checkpoint.tenant_id", "checkpoint.id"],
            name=op.f("fk_tag_tenant_id_checkpoint_id_checkpoint"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "external_session_id"],
            ["external_session.tenant_id", "external_session.id"],
            name=op.f("fk_tag_tenant_id_external_session_id_external_session"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "external_session_id", "name", name=op.f("pk_tag")),
    )
    op.create_index(op.f("ix_tag_tenant_id_checkpoint_id"), "tag", ["tenant_id", "checkpoint_id"])
    op.create_table(
        "search_text",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("internal_session_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=True),
        sa.Column("row_id", sa.BigInteger(), nullable=True),
        sa.Column("words", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "internal_session_id"],
            ["internal_session.tenant_id", "internal_session.id"],
            name=op.f("fk_search_text_tenant_id_internal_session_id_internal_session"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_search_text")),
    )
    op.create_index(
        op.f("ix_search_text_tenant_id_internal_session_id_number"),
        "search_text",
        ["tenant_id", "internal_session_id", "number"],
    )
    if op.get_context().dialect.name == "postgresql":
        # A search looks through the whole of what is pending, so that is kept short.
        gin = "CREATE INDEX ix_search_text_words ON search_text USING gin (words) WITH (gin_pending_list_limit=256)"
        op.execute(gin)
    else:
        op.execute("CREATE VIRTUAL TABLE search_words USING fts5(words, content='', columnsize=0, tokenize='ascii')")
    op.create_index(
        "ix_checkpoint_log",
        "checkpoint",
        ["internal_session_id", "tenant_id", "created_at", "id", "number", "is_auto", "user_id"],
    )
    op.create_index(
        "ix_checkpoint_name",
        "checkpoint",
        ["tenant_id", "internal_session_id", "name", "created_at", "id"],
        sqlite_where=sa.text("name IS NOT NULL"),
        postgresql_where=sa.text("name IS NOT NULL"),
    )
    op.add_column("internal_session", sa.Column("searched", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("internal_session", "searched")
    op.drop_index("ix_checkpoint_name", "checkpoint")
    op.drop_index("ix_checkpoint_log", "checkpoint")
    if op.get_context().dialect.name != "postgresql":
        op.execute("DROP TABLE search_words")
    op.drop_table("search_text")
    op.drop_table("tag")
