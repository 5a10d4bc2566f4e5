"""Addresses that are wrong, by a number, a parameter or a method, are told what they must be."""

from typing import get_args

import pytest

from tests.api.operations import ROUTES
from tests.api.test_free_texts import BATCHES
from tests.api.test_records import refused
from tests.conftest import Service

DIGITS = "9" * 5000


def test_a_parameter_of_the_address_is_explained(service: Service):
    problem = refused(service.client().get("/v1/streams?limit=many"), 422, "invalid-request")
    assert problem["errors"] == [{"field": "query.limit", "reason": "must be a whole number, in digits alone"}]


@pytest.mark.parametrize(
    ("method", "address", "headers", "field"),
    [
        ("POST", "/v1/explorer/datasets?name=", {"Content-Type": "text/csv"}, "query.name"),
        ("GET", "/v1/streams?limit=0", {"Content-Encoding": "gzip"}, "query.limit"),
        ("DELETE", "/v1/keys/a", {"Content-Encoding": "gzip", "Content-Type": "text/csv"}, "path.key"),
    ],
)
def test_a_mistake_in_the_address_is_no_mistake_of_the_body(service: Service, method, address, headers, field):
    problem = refused(service.client().request(method, address, headers=headers), 422, "invalid-request")
    assert [each["field"] for each in problem["errors"]] == [field]


@pytest.mark.parametrize("number", ["1_0", "%2B10", "10.0", "1e1", "%2010", "%D9%A1", "0x1"])
@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("streams?limit={}", "query.limit"),
        ("keys?before={}", "query.before"),
        ("publications/a/releases?before={}", "query.before"),
        ("publications/a/releases/{}", "path.version"),
        ("streams/a/ledger?start={}", "query.start"),
        ("explorer/explorations/{}", "path.exploration"),
    ],
)
def test_a_number_in_an_address_is_in_digits(service: Service, address, field, number):
    problem = refused(service.client().get(f"/v1/{address.format(number)}"), 422, "invalid-request")
    assert problem["errors"] == [{"field": field, "reason": "must be a whole number, in digits alone"}]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(str(2**63), f"must be below {2**63}"), (DIGITS, "must be a whole number of fewer digits")],
)
def test_a_large_number_in_an_address_is_explained(service: Service, number, reason):
    problem = refused(service.client().get(f"/v1/streams?before={number}"), 422, "invalid-request")
    assert problem["errors"] == [{"field": "query.before", "reason": reason}]


def takes_numbers(parameter) -> bool:
    kind = parameter.field_info.annotation
    return kind is int or int in get_args(kind)


@pytest.mark.parametrize("number", [2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 0, -1, -(2**63) - 1])
def test_no_number_in_any_address_is_an_error_of_the_service(service: Service, number):
    """Those of PostgreSQL end at 2^63 - 1."""
    stream = service.stream()
    names = {"stream": stream, "publication": service.publish(stream, BATCHES)}
    asked = 0
    for route in ROUTES:
        path, query = route.dependant.path_params, route.dependant.query_params
        if not any(map(takes_numbers, (*path, *query))):
            continue
        address = route.path_format.format(
            **{each.name: number if takes_numbers(each) else names.get(each.name, "a") for each in path}
        )
        for method in route.methods:
            answer = service.client().request(
                method, address, params={each.alias: number for each in query if takes_numbers(each)}
            )
            assert answer.status_code < 500, (method, address)
            asked += 1
    assert asked >= 15
    assert service.client().delete(f"/v1/keys/{2**63}").status_code == 422


@pytest.mark.parametrize("number", [2**63, 10**30, -(2**63) - 1])
def test_no_number_of_a_data_set_is_an_error_of_the_service(service: Service, number):
    answer = service.client().post("/v1/explorer/explorations", json={"dataset": number})
    refused(answer, 422, "invalid-request")


@pytest.mark.parametrize(
    ("method", "path", "detail"),
    [
        (
            "DELETE",
            "/v1/streams/{stream}",
            "This address answers to GET, HEAD. A stream and its ledger stay for ever: ",
        ),
        ("DELETE", "/v1/publications/{name}/releases/1", "A release stays for ever"),
        ("PATCH", "/v1/publications/{name}", "make another one under a new name"),
        ("PUT", "/v1/keys", "This address answers to GET, HEAD, POST."),
    ],
)
def test_another_method_is_told_which_there_are_and_what_to_do_instead(service: Service, method, path, detail):
    stream, name = "zebra-crossing", "some-model"
    answer = service.client().request(method, path.format(stream=stream, name=name))
    problem = refused(answer, 405, "method-not-allowed")
    assert detail in problem["detail"]
    assert answer.headers["allow"] in problem["detail"]
    assert stream not in problem["detail"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
        ("/dashboard", "GET, HEAD"),
        ("/dashboard/explorer", "GET, HEAD"),
        ("/dashboard/publications/a/label", "GET, HEAD"),
        ("/dashboard/assets/a/b", "GET, HEAD"),
        ("/livez", "GET, HEAD"),
        ("/v1/session", "DELETE, GET, HEAD, POST"),
        ("/v1/streams/a/units/b/c", "DELETE, GET, HEAD"),
        ("/v1/streams/a/records", "DELETE, POST"),
        ("/v1/publications/a/releases/latest", "GET, HEAD"),
    ],
)
def test_every_address_says_which_methods_it_answers_to(service: Service, path, allowed):
    answer = service.client().patch(path)
    problem = refused(answer, 405, "method-not-allowed")
    assert (answer.headers["allow"], problem["detail"]) == (allowed, f"This address answers to {allowed}.")
