#!/bin/bash
# The part of the real image's script that is used here: it initialises an empty volume.
set -euo pipefail
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA"
    # shellcheck disable=SC2086  # several options
    initdb --username="$POSTGRES_USER" --pwfile=<(echo "${POSTGRES_PASSWORD:?}") ${POSTGRES_INITDB_ARGS:-}
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -o "-c listen_addresses= -k $PGHOST" -w start
    createdb -U "$POSTGRES_USER" "${POSTGRES_DB:-$POSTGRES_USER}"
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@" -c listen_addresses='*' -k "$PGHOST"
