"""A card as a page of HTML that prints on one sheet and loads nothing."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from service.api.card.content import Card, CardAmounts, CardParameter

_FOLDER = Path(__file__).resolve().parent
_STYLE = (_FOLDER / "card.css").read_text()
_PAGE = Template((_FOLDER / "card.html").read_text())
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}


def page(card: Card) -> str:
    """Return the card as HTML."""
    how = " with ".join(kind.replace("_", " ") for kind in (card.mechanism, card.learner) if kind)
    newest = (
        "No charge yet." if card.ledger.charge is None else f"Charge {card.ledger.charge}, hash {card.ledger.hash}."
    )
    return _PAGE.substitute(
        style=_STYLE,
        **{name: escape(str(getattr(card, name))) for name in ("publication", "stream", "state")},
        how=escape(how),
        created=escape(card.created_at.date().isoformat()),
        warnings="".join(f'<p class="warning">{escape(warning)}</p>' for warning in card.warnings),
        unit=escape(card.unit.text),
        subject=card.unit.kind,
        **_parameter("epsilon", card.epsilon),
        **_parameter("delta", card.delta),
        **_rho(card.rho),
        public=_list(card.public),
        protected=_list(card.protected),
        trust_boundary=_list(card.trust_boundary),
        operator=escape(card.operator or "Not named: set PERENNIAL_OPERATOR."),
        newest=escape(newest),
        records=f"{card.ledger.records:,}",
    )


def _parameter(name: str, parameter: CardParameter) -> dict[str, str]:
    amounts = {
        f"{name}_{subject}_{amount}": _number(value)
        for subject in ("publication", "stream")
        for amount, value in getattr(parameter, subject)
    }
    return {f"{name}_text": escape(parameter.text), **amounts}


def _rho(parameter: CardParameter | None) -> dict[str, str]:
    """Return what stands beside ε and δ; nothing where the budget is not held in ρ."""
    if parameter is None:
        names = (
            f"rho_{subject}_{amount}" for subject in ("publication", "stream") for amount in CardAmounts.model_fields
        )
        return dict.fromkeys(("rho_text", *names), "")
    text, amounts = f"<p>{escape(parameter.text)}</p>", _parameter("rho", parameter)
    return {name: f", ρ {value}" for name, value in amounts.items()} | {"rho_text": text}


def _list(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _number(value: float) -> str:
    """Return a double with all its digits, so that the page says no less than the ledger."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
