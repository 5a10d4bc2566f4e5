"""Families of settings, each with a `kind`, and fields that take the settings of any family in a registry.

A registry is looked up when a document is read or a schema is written, not when a class is made: a family that is
registered later is taken from then on.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar, Union, get_args

from pydantic import Field, TypeAdapter
from pydantic_core import core_schema

from service.inputs.fields import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

S = TypeVar("S", bound=Shape)
F = TypeVar("F", bound="Family[Any]")


class FamilySettings(Protocol):
    """Settings of one family, validated, with the fields that the user set."""

    @property
    def kind(self) -> str: ...
    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """Return the settings as they are stored."""


@dataclass(frozen=True, kw_only=True)
class Family(Generic[S]):
    """The description of a kind of mechanism or learner; the rest of the service uses nothing else of it.

    | field | |
    |---|---|
    | settings | the shape of what people write; its `kind` is a literal |
    | source | the paper that it comes from, for the index of the documentation |
    | summary | what to know of it in a few words, for the same |
    | examples | settings as people write them, by name: every variant that tests of guarantees look at |
    """

    settings: type[S]
    source: str
    summary: str
    examples: Mapping[str, Mapping[str, Any]]

    @property
    def kind(self) -> str:
        """Return the name by which people ask for it."""
        kind: str
        (kind,) = get_args(self.settings.model_fields["kind"].annotation)
        return kind


class Registry(Generic[F]):
    """Families by their kinds, in order. `example`: settings that an error message shows to people who gave none."""

    def __init__(self, *families: F, example: Mapping[str, Any]) -> None:
        self.example = json.dumps(example)
        self._families = {family.kind: family for family in families}
        self._adapter: TypeAdapter[FamilySettings] | None = None

    def __iter__(self) -> Iterator[F]:
        return iter(self._families.values())

    def __getitem__(self, kind: str) -> F:
        return self._families[kind]

    def of(self, settings: FamilySettings) -> F:
        """Return the family of these settings."""
        return self._families[settings.kind]

    def kinds(self, which: Callable[[F], bool] = lambda _: True) -> list[str]:
        """Return the kinds of those families."""
        return [family.kind for family in self if which(family)]

    @contextmanager
    def registered(self, family: F) -> Iterator[F]:
        """Add a family for a while. ValueError if its kind is taken."""
        if family.kind in self._families:
            raise ValueError(f"there is a family of kind {family.kind} already")
        self._set(self._families | {family.kind: family})
        try:
            yield family
        finally:
            self._set({kind: member for kind, member in self._families.items() if kind != family.kind})

    @property
    def adapter(self) -> TypeAdapter[FamilySettings]:
        """Reads settings of any family."""
        if self._adapter is None:
            choices: Any = Union[tuple(family.settings for family in self)]  # noqa: UP007 - of as many as there are
            self._adapter = TypeAdapter(Annotated[choices, Field(discriminator="kind")])
        return self._adapter

    def _set(self, families: dict[str, F]) -> None:
        self._families, self._adapter = families, None


@dataclass(frozen=True)
class OneOf:
    """The annotation of a field that takes the settings of any family in a registry."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: self.registry.adapter.validate_python(value)  # noqa: PLW0108 - another one tomorrow
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.registry.adapter.core_schema)
