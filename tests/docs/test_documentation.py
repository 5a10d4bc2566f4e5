"""Nothing there is goes undocumented, and what docs/ says of names, defaults and choices is so."""

import ast
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from prometheus_client.core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs import http_reference, reference
from service import metrics
from service.api.http.problems import _PROBLEMS
from service.api.routes.publications import PublicationRequest
from service.api.routes.streams import StreamRequest
from service.learning.registry import LEARNERS
from service.ledger.overview import Overview
from service.log import LogState
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.lifelong.settings import ConvolutionalEncoder, DenseEncoder, LifelongMechanism
from service.mechanisms.measured import LINES, measured
from service.mechanisms.registry import MECHANISMS
from service.privacy.currency import Currency
from service.schedules.continual import Continual
from service.schedules.sliding_window import SlidingWindow
from service.settings import Settings
from service.streams.schema import Classification, StreamSchema
from tests.api.test_access import ADMIN, INGEST, LABEL, METRICS, READ
from tests.docs.pages import ROOT, blocks, rows

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}


def shapes(annotation: Any) -> dict[str, type[BaseModel]]:
    """The models among the choices of a field, by their `kind`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        (kind,) = get_args(annotation.model_fields["kind"].annotation)
        return {kind: annotation}
    return {kind: shape for each in get_args(annotation) for kind, shape in shapes(each).items()}


FOLDERS = {
    folder: {family.kind: family.settings for family in registry}
    for folder, registry in (("mechanisms", MECHANISMS), ("learners", LEARNERS))
}
TASKS = shapes(StreamRequest.model_fields["task"].annotation)
DESCRIBED = {
    **{f"{folder}/{kind}.md": shape for folder, kinds in FOLDERS.items() for kind, shape in kinds.items()},
    "streams.md": StreamRequest,
    "publications.md": PublicationRequest,
}


STREAM = StreamSchema.model_validate({"features": 5, "task": {"kind": "classification", "classes": 2}})
CATEGORIES = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 5}})
ON_CATEGORIES = {"linear_queries", "small_database"}


def choices(annotation: Any) -> Iterator[str]:
    """Yield what may be written in the place of a field, where that is one of a few words."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for each in get_args(annotation):
            yield from choices(each)


def default(field: FieldInfo) -> str:
    """As a table shows it: as JSON writes it, but words without quotes; nothing where there is none."""
    if field.is_required():
        return ""
    return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default, default=float)}`"


def test_what_is_generated_is_current():
    assert [page for page, text in reference.pages().items() if PAGES[page] != text] == [], "stale: run `make docs`"


def test_every_route_is_told_with_its_scope():
    document = http_reference.openapi()
    headings = re.findall(r"^### ([A-Z]+ /\S*)$", PAGES["api.md"], flags=re.MULTILINE)
    assert sorted(headings) == sorted(
        f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations
    )
    scopes = {"ingest": INGEST, "read": READ, "label": LABEL, "metrics": METRICS, "admin": ADMIN}
    assert {
        f"{method.upper()} {path}": scope for scope, operations in scopes.items() for method, path in operations
    } == reference.SCOPES


def test_every_metric_is_told():
    state = metrics.ServiceState(Overview(streams=[], publications=[]), LogState(), worker=True, database=True)
    families: list[Metric] = [*metrics.API.collect(), *metrics.WORKER.collect(), *state.collect()]
    assert len(families) > 20
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"| `{name}` | {family.type} |" in PAGES["metrics.md"]


def test_every_problem_is_told():
    table = {kind: (cells[1], cells[2]) for kind, cells in rows(PAGES["problems.md"], "# Problems").items()}
    assert table == {kind: (str(status), title) for kind, (status, title) in _PROBLEMS.items()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_mechanism_and_learner_has_a_page_that_the_index_names(folder):
    assert {path.stem for path in (DOCS / folder).glob("*.md")} == set(FOLDERS[folder])
    assert f"](README.md#{folder})" in PAGES["publications.md"]
    for kind in FOLDERS[folder]:
        assert f"| [{kind}]({folder}/{kind}.md) |" in PAGES["README.md"]


@pytest.mark.parametrize("page", DESCRIBED)
def test_every_setting_of_it_is_told_with_its_default_and_its_choices(page):
    table = rows(PAGES[page], "## Settings")
    fields = {name: field for name, field in DESCRIBED[page].model_fields.items() if name != "kind"}
    assert set(table) == set(fields)
    for name, field in fields.items():
        assert table[name][1] == default(field), name
        for choice in choices(field.annotation):
            assert f"`{choice}`" in "".join(table[name][1:]), f"{name}: {choice}"


def test_every_setting_of_an_encoder_is_told():
    table = rows(PAGES["mechanisms/lifelong.md"], "## An encoder")
    fields = DenseEncoder.model_fields | ConvolutionalEncoder.model_fields
    assert set(table) == set(fields)
    assert {name: cells[1] for name, cells in table.items()} == {name: default(field) for name, field in fields.items()}
    for kind in shapes(LifelongMechanism.model_fields["encoder"].annotation):
        assert f"`{kind}`" in table["kind"][2]


def test_every_task_is_told_with_its_settings():
    table = rows(PAGES["streams.md"], "## Tasks")
    assert set(table) == set(TASKS)
    for kind, shape in TASKS.items():
        assert set(re.findall(r"`(\w+)`", table[kind][1])) == set(shape.model_fields) - {"kind"}


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page in DESCRIBED if "/" in page for text in blocks(PAGES.get(page, ""), "json")],
)
def test_an_example_is_taken_and_is_of_what_its_page_is_about(page, text):
    example = json.loads(text)
    build(
        CATEGORIES if {each["kind"] for each in example.values() if "kind" in each} & ON_CATEGORIES else STREAM,
        PublicationConfiguration.model_validate(example),
    )
    field, kind = Path(page).parts[0].removesuffix("s"), Path(page).stem
    assert example[field]["kind"] == kind


@pytest.mark.parametrize("page", [page for page in DESCRIBED if "/" in page])
def test_a_page_links_the_code_that_has_the_proof(page):
    """The module's docstring has it, so that it is beside what it is about, and nowhere else."""
    paragraph = PAGES[page].partition("**Proof.**")[2].partition("\n\n")[0]
    modules = re.findall(r"\]\(\.\./\.\./(service/[^)]+\.py)\)", paragraph)
    assert modules
    for module in modules:
        assert ast.get_docstring(ast.parse((ROOT / module).read_text())), module


@pytest.mark.parametrize(("column", "kind"), [(1, Currency.PURE), (2, Currency.ZCDP)])
def test_the_shares_in_the_tables_are_those_of_the_schedules(column, kind):
    tables = {
        page: {int(first): cells for first, cells in rows(PAGES[page], "## Statement").items() if first.isdigit()}
        for page in ("mechanisms/continual.md", "mechanisms/sliding_window.md")
    }
    for ratio, cells in tables["mechanisms/continual.md"].items():
        base = Continual(currency=kind, base=ratio * 1000, update_every=1000).fits(ratio * 1000)[0]
        assert Fraction(cells[column]) == base.share
    for window, cells in tables["mechanisms/sliding_window.md"].items():
        assert (
            Fraction(cells[column].removesuffix(" e₀")) == 1 / SlidingWindow(currency=kind, block=1, blocks=window).unit
        )
    assert all(len(each) > 2 for each in tables.values())


@pytest.mark.parametrize("page", PAGES)
def test_what_is_named_exists(page):
    text = PAGES[page]
    known = {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"PERENNIAL_[A-Z_]+", text)) <= known
    rooms = "|".join(path.name for path in (ROOT / "service").iterdir() if path.is_dir())
    for path in re.findall(rf"`((?:{rooms})/[\w/]+\.py)`", text):
        assert (ROOT / "service" / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for link, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", PAGES[page]):
        target = (DOCS / page).parent / link if link else DOCS / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, anchor


def test_every_page_can_be_reached_from_the_index():
    assert set(PAGES) - {"README.md"} == {
        link for link in re.findall(r"\]\(([^)#]+\.md)\)", PAGES["README.md"]) if not link.startswith("..")
    }


@pytest.mark.parametrize("line", [line for line in LINES if line.mechanism is not None], ids=lambda line: line.title)
def test_a_plan_finds_what_was_measured(line: Any) -> None:
    example = next(iter(MECHANISMS[line.mechanism["kind"]].examples.values()))
    request = {
        "mechanism": example | line.mechanism,
        "learner": {"kind": line.learner},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    schema = StreamSchema(features=2, task=Classification(kind="classification", classes=2))
    shown = measured(schema, PublicationConfiguration.model_validate(request))["lines"]
    assert [each["what"] for each in shown if each["this"]] == [line.title]
