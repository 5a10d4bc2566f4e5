"""Ten thousand releases and a hundred thousand ranges of the ledger: nobody waits, and little of it is loaded."""

import re
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy
from playwright.sync_api import Page, expect

from service.ledger import spending
from service.store.database import Database
from tests.browser.looking import activate, until
from tests.conftest import Service, ok, unique

RELEASES, RANGES, LONG = 10_000, 100_000, 10
# A page may use so many times the processor time of `WORK` to answer one act. It uses half of that to three times it.
TIMES_THE_WORK = 10
WORK = """for (let turn = 0; turn < 20; turn++) {
  const box = document.createElement("div");
  for (let row = 0; row < 1000; row++) box.append(Object.assign(document.createElement("p"), { textContent: row }));
}"""
TIMES = 5  # each thing is done

AGO = "now() - (:releases - n) * interval '1 second'"
FILL = (
    "UPDATE publications SET version = :releases, latest = :releases, seal = '' WHERE id = :publication",
    """UPDATE streams SET records = :records, grain = :grain, charges = :releases, releases = :releases,
        confirmed_charges = :releases, confirmed_releases = :releases WHERE id = :stream""",
    f"""INSERT INTO charges
        (stream_id, id, publication_id, version, start, stop, epsilon, delta, charged_at, hash)
    SELECT :stream, n, :publication, n, (n - 1) * 100, n * 100, 0.001 * (1 + n % 7), 0, {AGO}, n
    FROM generate_series(1, :releases) AS n""",
    f"""INSERT INTO releases
        (publication_id, version, stream_id, charge, time, role, window_start, window_stop, fit_start, fit_stop, shape,
        parameters, model, noise, digest, number, published_at)
    SELECT :publication, n, :stream, n, n * 100, 'model', 0, n * 100, (n - 1) * 100, n * 100, '{{1,3}}',
        decode(repeat('00', 24), 'hex'), :model, json_build_object('scale', 1 + n % 5), n, n, {AGO}
    FROM generate_series(1, :releases) AS n""",
    """INSERT INTO spent (publication_id, start, stop, amount)
    SELECT :publication, n * :long, (n + 1) * :long, 0.001 * (1 + n % 7) FROM generate_series(0, :ranges - 1) AS n""",
    """INSERT INTO outlines (stream_id, start, stop, epsilon, delta)
    SELECT :stream, n * :grain, least((n + 1) * :grain, :records), 0.007, 0
    FROM generate_series(0, (:records - 1) / :grain) AS n""",
)
MODEL = '{"kind": "linear", "loss": "logistic", "classes": 2, "features": 2, "norm_bound": 1.0, "shape": [1, 3]}'


@pytest.fixture(scope="module")
def large(service: Service) -> Iterator[tuple[str, str]]:
    """As if it had published for long. (Its ledger was never written by a worker, so none would publish more of it.)"""
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 10**9, "blocks": 1}, name=unique("large"))
    database = Database(str(service.settings.database_url))
    with database.transaction() as connection:
        row = connection.execute(
            sqlalchemy.text("SELECT id, stream_id FROM publications WHERE name = :name"), {"name": name}
        ).one()
        values = {
            "stream": row.stream_id,
            "publication": row.id,
            "records": RANGES * LONG,
            "grain": 2**11,
            "releases": RELEASES,
            "ranges": RANGES,
            "long": LONG,
            "model": MODEL,
        }
        for statement in FILL:
            connection.execute(sqlalchemy.text(statement), values)
        assert spending.exact(connection, row.stream_id, 0, RANGES * LONG) is None  # too many to be told one by one
    database.close()
    return stream, name


@pytest.mark.more
def test_of_many_streams_the_newest_are_shown_and_said_to_be_these(service: Service, reader: Page):
    service.stream()
    (newest,) = ok(service.client().get("/v1/streams?limit=1"))["items"]
    hundred = {"items": [newest | {"name": f"{newest['name']}-{number}"} for number in range(100)]}
    reader.route("**/v1/streams?limit=100", lambda route: route.fulfill(json=hundred))
    reader.goto("/dashboard")
    expect(reader.get_by_role("status")).to_contain_text("the newest 100 streams, ")
    reader.unroute("**/v1/streams?limit=100")


def busy(page: Page, act: Callable[[], object]) -> float:
    """How long a page works on what somebody does, at most (ms of its own processor time, the median of some times).

    It is the time of its main thread from the act to the last of what follows: the page answers sooner than that.
    """
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def so_far() -> float:
        measures = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(each["value"] for each in measures if each["name"] == "TaskDuration")

    times = []
    for _ in range(TIMES):
        before = so_far()
        act()
        page.wait_for_timeout(200)
        times.append(so_far() - before)
    session.detach()
    print(f"{act.__name__}: {sorted(times)}")
    return sorted(times)[TIMES // 2]


def most_milliseconds(page: Page) -> float:
    """Return what a page may use on this machine, as it is now."""

    def work() -> None:
        page.evaluate(f"() => {{ {WORK} }}")

    return TIMES_THE_WORK * busy(page, work)


@pytest.mark.more
@pytest.mark.slow
def test_ten_thousand_releases(reader: Page, large):
    reader.goto(f"/dashboard/publications/{large[1]}")
    until(reader, "document.getElementById('seen').data")
    rows = reader.get_by_role("region", name="Releases, newest first").get_by_role("row")
    expect(rows).to_have_count(21)
    assert reader.evaluate("document.getElementById('noise').data.at(-1).x.length") <= 512
    assert reader.evaluate("document.querySelectorAll('*').length") < 1500
    most = most_milliseconds(reader)
    older = reader.get_by_role("button", name="Older")
    pages = iter(range(1, TIMES + 1))

    def turn() -> None:
        older.click()
        expect(rows.nth(1)).to_contain_text(f"version {RELEASES - 20 * next(pages):,}")

    assert busy(reader, turn) < most
    chart = reader.locator("#noise")
    steps = iter(range(20, 20 + 40 * TIMES))
    assert busy(reader, lambda: chart.hover(position={"x": 3 * next(steps), "y": 60})) < most
    link = reader.get_by_role("link", name=f"version {RELEASES - 20 * TIMES:,}")

    def open_and_close() -> None:
        activate(link)
        expect(reader.get_by_role("dialog")).to_be_visible()
        reader.keyboard.press("Escape")
        expect(reader).to_have_url(re.compile(f"{large[1]}$"))

    assert busy(reader, open_and_close) < most


@pytest.mark.more
@pytest.mark.slow
def test_a_hundred_thousand_ranges(reader: Page, large):
    reader.goto(f"/dashboard/streams/{large[0]}")
    until(reader, "document.getElementById('ledger').data")
    expect(reader.locator("#ledger-said")).to_contain_text("show fewer records to see all")
    assert reader.evaluate("document.getElementById('ledger').data[0].x.length") <= 2 * 512
    most = most_milliseconds(reader)
    starts = iter(range(0, 10_000, 1000))

    def zoom() -> None:
        start = next(starts)
        reader.get_by_label("From record").fill(str(start))
        reader.get_by_label("to record").fill(str(start + 999))
        reader.keyboard.press("Enter")
        until(reader, f"document.getElementById('ledger').data[0].x[0] === {start}")

    assert busy(reader, zoom) < most
    expect(reader.locator("#ledger-said")).to_have_text("100 ranges · the most ε 0.007")
    older = reader.locator("#charges").get_by_role("button", name="Older")
    assert busy(reader, older.click) < most
