"""Keys of requests that this process can answer at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.store import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.api.auth.credentials import Secret
    from service.api.services import Services
    from service.store.keys import Key


def shown_key(headers: Mapping[bytes, bytes]) -> Secret | None:
    """Return the key that a request shows in the plain way."""
    scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return (secret, keys.find) if scheme == "Bearer" else None


def ready_key(shared: Services, headers: Mapping[bytes, bytes], needed: str) -> Key | None:
    """Return the key that a request shows; None where it has to be looked up, asks too often or may not do this.

    headers: of the request. needed: the scope that the key must have, or `admin`.
    """
    shown = shown_key(headers)
    key = None if shown is None else shared.keys.remembered(shown)
    if key is None or not {needed, "admin"} & key.scopes or shared.requests.early(key.id):
        return None
    return key
