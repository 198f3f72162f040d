"""PostgreSQL in place of Citus, which the tests cannot install: what agentgit calls and reads of Citus 13.2."""

from __future__ import annotations

SQL = """
CREATE TABLE pg_dist_partition
  (logicalrelid regclass, partmethod "char", partkey text, colocationid integer, repmodel "char");
-- Citus stores the key as a parsed expression, of which this function makes the name.
CREATE FUNCTION column_to_column_name(regclass, text) RETURNS text LANGUAGE sql STRICT AS $$ SELECT $2 $$;
CREATE FUNCTION create_reference_table(regclass) RETURNS void LANGUAGE sql AS
  $$ INSERT INTO pg_dist_partition VALUES ($1, 'n', NULL, 1, 't') $$;
CREATE FUNCTION create_distributed_table(regclass, text, colocate_with text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal) THEN
    RAISE 'triggers are not supported on distributed tables';
  END IF;
  IF EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = $1 AND a.attname = $2
             WHERE i.indrelid = $1 AND i.indisunique AND NOT a.attnum = ANY (i.indkey)) THEN
    RAISE 'a unique key of % does not include the distribution column', $1;
  END IF;
  INSERT INTO pg_dist_partition SELECT $1, 'h', $2, CASE colocate_with
    WHEN 'none' THEN (SELECT 1 + max(colocationid) FROM pg_dist_partition)
    ELSE (SELECT colocationid FROM pg_dist_partition WHERE logicalrelid = colocate_with::regclass) END, 's';
END $$;
"""
"""The functions of the script for Citus and the table in which Citus keeps what they did.

As on Citus, a table with a trigger or with a unique key without the distribution column is refused. In contrast to
Citus, all rows stay on one machine, row-level security would work, and no statement is refused.
"""
