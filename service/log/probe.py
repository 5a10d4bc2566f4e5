"""Look at each primary of a cluster before anything is trusted to them."""

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from service.log.connection import CONNECTING, DURABILITY, SECONDS_TO_ANSWER, LogUnavailable, require_durability
from service.log.primaries import Primaries, Primary


class LogUnsuitable(Exception):
    """A primary must not be used as it is set up."""


def probe(primaries: Primaries) -> None:
    """Check that each primary that answers syncs its writes.

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
            _probe(primary)
        except ResponseError:
            raise LogUnsuitable(f"primary {primary.number} must allow `CONFIG GET *append* maxmemory*`") from None
        except LogUnavailable as unsafe:
            raise LogUnsuitable(f"primary {primary.number}: {unsafe}") from None
        except RedisError:
            continue


def _probe(primary: Primary) -> None:
    patience = {"socket_timeout": SECONDS_TO_ANSWER, "socket_connect_timeout": SECONDS_TO_ANSWER}
    with Redis.from_url(primary.url, retry=Retry(NoBackoff(), 0), **patience, **CONNECTING) as redis:
        require_durability(redis.config_get(*DURABILITY))
