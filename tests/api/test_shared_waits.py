"""One search serves all who wait for the same; none goes on for those who went, and none that failed is joined."""

import asyncio

import pytest

from service.api.shared_waits import SharedWaits


class _Finding:
    """Searches that end with what `answer` gets."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def find(self) -> str:
        self.begun += 1
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def _waiting(waits: SharedWaits[str], finding: _Finding, *, seconds: float = 200) -> list[asyncio.Task]:
    tasks = [asyncio.create_task(waits.wait("rain", finding.find, seconds)) for _ in range(10)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_all_get_the_answer_of_one_search():
    async def scenario() -> None:
        waits, finding = SharedWaits[str](), _Finding()
        tasks = await _waiting(waits, finding)
        other = asyncio.create_task(waits.wait("sun", asyncio.Event().wait, 0))
        finding.answer.set_result("found")
        assert await asyncio.gather(*tasks) == ["found"] * 10
        assert await other is None
        assert (finding.begun, finding.cancelled) == (1, 0)
        assert not waits._searches

    asyncio.run(scenario())


def test_it_goes_on_while_anybody_waits_and_no_longer():
    async def scenario() -> None:
        waits, finding = SharedWaits[str](), _Finding()
        tasks = await _waiting(waits, finding)
        for task in tasks[1:]:
            task.cancel()
        assert await waits.wait("rain", finding.find, 0) is None
        assert (finding.begun, finding.cancelled) == (1, 0)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert (finding.begun, finding.cancelled) == (1, 1)
        assert not waits._searches

    asyncio.run(scenario())


def test_an_error_reaches_all_and_the_next_search_begins_anew():
    async def scenario() -> None:
        waits, finding = SharedWaits[str](), _Finding()
        tasks = await _waiting(waits, finding)
        finding.answer.set_exception(ValueError("lost"))
        await asyncio.wait({waits._searches["rain"].task})
        better = _Finding()
        better.answer.set_result("found")
        assert await waits.wait("rain", better.find, 200) == "found"
        for task in tasks:
            with pytest.raises(ValueError, match="lost"):
                await task
        assert (finding.begun, better.begun) == (1, 1)
        assert not waits._searches

    asyncio.run(scenario())
