#!/bin/sh
# Create the role of the server, which owns nothing; PostgreSQL's image runs this once, on an empty data folder.
set -eu
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" \
    --set=password="$AGENTGIT_PASSWORD" <<'SQL'
CREATE ROLE agentgit LOGIN PASSWORD :'password';
SQL
