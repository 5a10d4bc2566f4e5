# Tags move. Where images must be the same bytes for ever, pin these two by digest.
FROM python:3.13-slim-trixie AS build

WORKDIR /build
COPY requirements.lock requirements-dev.lock ./

# What the service runs on: wheels only, versions and hashes from the lock.
RUN python -m venv --without-pip /opt/perennial \
    && pip --python /opt/perennial/bin/python install --no-cache-dir --disable-pip-version-check \
        --require-hashes --only-binary :all: -r requirements.lock

# The backend that builds the project, with the development lock's versions and hashes. pip refuses a package that is missing here.
RUN awk '/^[^ #]/ {wanted = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/} wanted' requirements-dev.lock > backend.lock \
    && python -m venv /opt/backend \
    && /opt/backend/bin/pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --only-binary :all: -r backend.lock

COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY migrations migrations
RUN /opt/backend/bin/python -m hatchling build -t wheel -d /build/dist \
    && pip --python /opt/perennial/bin/python install --no-cache-dir --disable-pip-version-check \
        --no-index --no-deps dist/perennial-*.whl


FROM python:3.13-slim-trixie

# A number, so that Kubernetes can see that it is not root. The folders are for volumes: segments, and copies of those that an object store has.
RUN groupadd --gid 10001 perennial \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin perennial \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/perennial \
        /var/lib/perennial/segments /var/lib/perennial/copies

COPY --from=build /opt/perennial /opt/perennial

ENV PATH=/opt/perennial/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PERENNIAL_HOST=0.0.0.0 \
    PERENNIAL_SEGMENT_STORE=/var/lib/perennial/segments

USER 10001:10001
WORKDIR /var/lib/perennial
EXPOSE 8000

# For the API. A worker answers no requests: switch this off there.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "\
import http.client, os, sys\n\
connection = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PERENNIAL_PORT', '8000')), timeout=4)\n\
connection.request('GET', '/readyz')\n\
sys.exit(connection.getresponse().status != 200)"]

ENTRYPOINT ["perennial"]
CMD ["api"]
