#!/bin/sh
# The real image is compiled without protected mode.
[ "$1" != valkey-server ] || set -- "$@" --protected-mode no
exec "$@"
