"""Every place where the service changes something outside its own memory, found in the code and in the running program.

A step is named after the function that takes it and what it does there: `Sealer._seal: commit`. A crash, or a stop, can
come just before it or just after it; between two steps nothing happens that anybody could see. The service knows
nothing of this: `instrument` puts itself around the few calls through which all steps go.
"""

from __future__ import annotations

import ast
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import obstore
import redis
import redis.asyncio

import service
from service.log.commands import Commands
from service.mechanisms import registry
from service.mechanisms.mechanism import Mechanism
from service.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

When = Literal["before", "after"]

ROOMS = ("api", "ledger", "log", "publishing", "queries", "segments", "store", "worker")
_DATABASE = "service.store.database"  # transactions are their caller's, not its own


def instrument(reach: Callable[[str, When], None], put: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on `reach` is called before and after every step that this process takes.

    put: what sets an attribute; that of `monkeypatch` takes everything back at the end.
    """

    def around(owner: Any, name: str, what: str) -> None:
        true = getattr(owner, name)

        def step(*args: Any, **options: Any) -> Any:
            if (taken := _named(what)) is None:
                return true(*args, **options)
            reach(taken, "before")
            answer = true(*args, **options)
            reach(taken, "after")
            return answer

        put(owner, name, step)

    def around_awaited(owner: Any, name: str, what: str) -> None:
        true = getattr(owner, name)

        async def step(*args: Any, **options: Any) -> Any:
            taken = _named(what) or what
            reach(taken, "before")
            answer = await true(*args, **options)
            reach(taken, "after")
            return answer

        put(owner, name, step)

    true_transaction = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[Any]:
        taken = _named("commit") or "commit"
        with true_transaction(self) as connection:
            yield connection
            reach(taken, "before")
        reach(taken, "after")

    put(Database, "transaction", transaction)
    around(os, "fsync", "sync")
    around(os, "unlink", "delete")
    around(obstore, "put", "object")
    around(obstore, "delete", "object")
    for mechanism in _below(Mechanism):
        if "step" in vars(mechanism):
            around(mechanism, "step", "fit")
    around(redis.Redis, "execute_command", "log")
    around(redis.client.Pipeline, "execute", "log")
    around_awaited(Commands, "send", "log")
    around_awaited(redis.asyncio.Redis, "execute_command", "log")
    around_awaited(redis.asyncio.client.Pipeline, "execute", "log")


def _below(kind: type) -> Iterator[type]:
    """Every class that is derived from it: those of all mechanisms, which the registry has imported."""
    assert registry.MECHANISMS
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _named(what: str) -> str | None:
    """The step of the innermost function of the service that is being called; None: it is not the service's."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("service.") and module != _DATABASE:
            return f"{frame.f_code.co_qualname}: {what}"
        frame = frame.f_back
    return None


def in_the_code() -> set[str]:
    """Every step that there is in the rooms that change anything."""
    names: set[str] = set()
    root = Path(service.__file__).parent
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            _Steps(names).visit(ast.parse(path.read_text()))
    return names


class _Steps(ast.NodeVisitor):
    """Collects the names that `_named` gives, from the text of a module."""

    def __init__(self, names: set[str]) -> None:
        self._names, self._inside = names, ""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, f"{self._inside}{node.name}.")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node, f"{self._inside}{node.name}.<locals>.")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node, f"{self._inside}{node.name}.<locals>.")

    def _enter(self, node: ast.AST, inside: str) -> None:
        outside, self._inside = self._inside, inside
        self.generic_visit(node)
        self._inside = outside

    def visit_Call(self, node: ast.Call) -> None:
        what = _step_of(ast.unparse(node.func))
        if what is not None:
            self._names.add(f"{self._inside.removesuffix('.<locals>.')}: {what}")
        self.generic_visit(node)


def _step_of(called: str) -> str | None:
    owner, _, name = called.rpartition(".")
    if owner.startswith("self._redis"):
        return None if name in {"pipeline", "register_script", "close", "aclose"} else "log"
    if called in {"pipe.execute", "self._trim", "self._commands.send"}:
        return "log"
    if called in {"obstore.put", "obstore.delete"}:
        return "object"
    if called.endswith("mechanism.step"):
        return "fit"
    return {"transaction": "commit", "fsync": "sync", "unlink": "delete"}.get(name) if owner else None
