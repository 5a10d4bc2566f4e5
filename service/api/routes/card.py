"""`/v1/publications/{publication}/card`: what a publication promises, on one page."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from service.api.auth.access import publication_or_404
from service.api.auth.scopes import KeyFirst, Reader
from service.api.card.content import Card, card
from service.api.card.page import HEADERS, page
from service.api.http.problems import Problem, documented
from service.api.http.representations import preferred
from service.api.services import Shared
from service.ledger.card import numbers
from service.mechanisms.building import declassified
from service.store import streams
from service.store.database import ONE_VIEW

router = APIRouter(route_class=KeyFirst, prefix="/v1/publications", tags=["publications"])

JSON, HTML = "application/json", "text/html"
_PAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The card, or a page of it to print", "content": {HTML: {"schema": {"type": "string"}}}}
}
Format = Annotated[
    Literal["json", "html"] | None, Query(alias="format", description="Takes the place of the header `Accept`")
]


@router.get(
    "/{publication}/card",
    response_model=Card,
    responses=_PAGE | documented("invalid-request", "not-found", "not-acceptable"),
)
async def get_card(publication: str, key: Reader, shared: Shared, request: Request, kind: Format = None) -> Response:
    """Return what a publication promises, for people who have to approve it: a page to sign.

    It has the privacy unit, ε and δ for life, what is public, what is protected, and who has to be trusted. As
    `text/html` it prints on one sheet.
    """
    media_type = _media_type(request, kind)

    def look(connection: Connection) -> Card:
        connection.execute(ONE_VIEW)
        row = publication_or_404(connection, key, publication)
        units = streams.get(connection, row.stream_id).parsed_schema.unit
        found_numbers = numbers(connection, row, declassified=declassified)
        return card(row, found_numbers, units=units, operator=shared.settings.operator)

    made = await shared.run(look)
    content = page(made) if media_type == HTML else made.model_dump_json()
    headers = HEADERS if media_type == HTML else {}
    return Response(content, headers={"Vary": "Accept", **headers}, media_type=media_type)


def _media_type(request: Request, kind: Literal["json", "html"] | None) -> str:
    if kind is not None:
        return HTML if kind == "html" else JSON
    chosen = preferred(",".join(request.headers.getlist("accept")), (JSON, HTML))
    if chosen is None:
        raise Problem("not-acceptable", f"A card is served as {JSON} and {HTML}.", headers={"Vary": "Accept"})
    return chosen
