"""Request bodies that carry records: read within limits, refused without repeating them."""

from fastapi import Request

from service.api.batches import InvalidRecords
from service.api.problems import Problem, wrong_format


def require_json(request: Request) -> None:
    """Refuses other formats."""
    if (problem := wrong_format(request)) is not None:
        raise problem


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, or a refusal as soon as it is too long."""
    problem = Problem("too-large", f"A request body holds at most {limit} bytes; send smaller batches.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise problem
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise problem
        chunks.append(chunk)
    return b"".join(chunks)


def refusal(refused: InvalidRecords) -> Problem:
    """What is wrong with which rows."""
    errors = [{"row": row, "reason": reason} for row, reason in refused.reasons]
    first = errors[0]
    where = f"row {first['row']}: " if first["row"] is not None else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem("invalid-records", f"{where}{first['reason']}{more}. Nothing was stored.", errors=errors)
