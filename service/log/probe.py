"""Look at each primary of several before anything is trusted to them."""

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from service.log.connection import CONNECTING, DURABILITY, SECONDS_TO_ANSWER, LogUnavailable, require_durability
from service.log.primaries import ListedPrimaries, Primaries, Primary

_NUMBER_KEY = "perennial:primary"


class LogUnsuitable(Exception):
    """A primary must not be used as it is set up."""


def probe(primaries: Primaries) -> None:
    """Check that each primary that answers syncs its writes and, in a list, has the number that it has always had.

    A primary that does not answer is passed over: every append looks at its settings again. The only one is passed
    over too.

    Raises:
        LogUnsuitable: a primary may not be used.
    """
    try:
        primaries.refresh()
    except LogUnavailable:
        return
    every = primaries.every()
    for primary in every if len(every) > 1 else ():
        try:
            _probe(primary, listed=isinstance(primaries, ListedPrimaries))
        except ResponseError:
            raise LogUnsuitable(
                f"primary {primary.number} must allow `CONFIG GET *append* maxmemory*` and `SET`"
            ) from None
        except LogUnavailable as unsafe:
            raise LogUnsuitable(f"primary {primary.number}: {unsafe}") from None
        except RedisError:
            continue


def _probe(primary: Primary, *, listed: bool) -> None:
    patience = {"socket_timeout": SECONDS_TO_ANSWER, "socket_connect_timeout": SECONDS_TO_ANSWER}
    with Redis.from_url(primary.url, retry=Retry(NoBackoff(), 0), **patience, **CONNECTING) as redis:
        require_durability(redis.config_get(*DURABILITY))
        if not listed:
            return
        known = redis.set(_NUMBER_KEY, primary.number, nx=True, get=True)
        if known is not None and int(known) != primary.number:
            raise LogUnsuitable(
                f"primary {primary.number} of PERENNIAL_REDIS_URL was number {int(known)} before: keep their order, and"
                " name each once"
            )
