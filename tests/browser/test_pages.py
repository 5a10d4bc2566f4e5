"""Pages and what they load, as they are sent: what a browser may do with them, and how long it keeps them."""

import gzip
import re

import httpx
import pytest

from service.dashboard.pages import STATIC
from tests.api.test_records import refused
from tests.conftest import Service

PAGES = (
    "/dashboard",
    "/dashboard/sign-in",
    "/dashboard/streams/some",
    "/dashboard/publications/some",
    "/dashboard/publications/some/label",
)


@pytest.mark.more
@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_its_own_scripts_and_no_others(service: Service, path):
    answer = httpx.get(service.url + path)
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert len(answer.headers.get_list("content-security-policy")) == 1
    assert answer.headers["cache-control"] == "private, no-cache"
    assert not re.search(r"<script(?![^>]* src=)|\sstyle=|\son\w+=|https?://", answer.text)
    assert "$$" not in answer.text  # a command to copy would name the shell's process


def test_nothing_comes_from_elsewhere():
    for path in STATIC.iterdir():
        assert not re.findall(r"https?://(?!www\.w3\.org/)", path.read_text()), path.name


def test_what_a_page_loads_is_kept_for_ever_and_sent_packed(service: Service):
    with httpx.Client(base_url=service.url) as client:
        addresses = re.findall(r'"\.(/dashboard/assets/[^"]+)"', client.get("/dashboard").text)
        assert {address.rpartition("/")[2] for address in addresses} == {
            *("icon.svg", "style.css", "plotly.js", "overview.js")
        }
        for address in addresses:
            packed, plain = (client.get(address, headers={"Accept-Encoding": each}) for each in ("gzip", "identity"))
            assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
            assert packed.content == plain.content
            assert packed.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content)) < len(plain.content)
        digest = addresses[0].split("/")[3]
        refused(client.get(addresses[0].replace(digest, "0" * 16)), 404, "not-found")
        refused(client.get(f"/dashboard/assets/{digest}/page.html"), 404, "not-found")
        refused(client.get(f"/dashboard/assets/{digest}/..%2fpages.py"), 404, "not-found")


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip ; q=0.000, *", False),
        ("*;q=0", False),
        ("br, deflate", False),
        ("x-not-gzip", False),
        ("", False),
    ],
)
def test_what_a_page_loads_is_packed_for_those_who_take_that(service: Service, accepted, packed):
    with httpx.Client(base_url=service.url) as client:
        address = re.findall(r'"\.(/dashboard/assets/[^"]+)"', client.get("/dashboard").text)[0]
        answer = client.get(address, headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)


def test_the_front_door_leads_there_without_saying_where_it_stands(service: Service):
    answer = httpx.get(service.url, headers={"Host": "elsewhere.example"})
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard")
