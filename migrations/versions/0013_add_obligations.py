"""add what each publication owes, computed once from its stored plan: no decision reads a plan from here on"""

import hashlib
from typing import Any

import rfc8785
import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("publications", sa.Column("obligations", sa.JSON(), nullable=True))
    op.add_column("publications", sa.Column("obligations_digest", sa.Text(), nullable=True))
    connection = op.get_bind()
    publications = sa.table(
        "publications",
        sa.column("id", sa.BigInteger),
        sa.column("plan", sa.JSON),
        sa.column("promise", sa.Text),
        sa.column("obligations", sa.JSON),
        sa.column("obligations_digest", sa.Text),
    )
    for row in connection.execute(sa.select(publications.c.id, publications.c.plan, publications.c.promise)).all():
        owed = of_plan(row.plan)
        connection.execute(
            sa.update(publications)
            .where(publications.c.id == row.id)
            .values(obligations=owed, obligations_digest=_digest({"promise": row.promise, "obligations": owed}))
        )
    for column in ("obligations", "obligations_digest"):
        op.alter_column("publications", column, nullable=False)


def downgrade() -> None:
    op.drop_column("publications", "obligations_digest")
    op.drop_column("publications", "obligations")


def of_plan(plan: Any) -> dict[str, Any]:
    """As `Mechanism.obligations` in service/mechanisms/mechanism.py; of a plan that was changed, as if it were empty.

    Such a plan is not what the publication's promise is of, and `ledger verify` says so.
    """
    try:
        return _of_plan(plan)
    except (LookupError, TypeError, ValueError, AttributeError):
        return _of_plan({})


def _of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    labels = plan.get("labels", {})
    people = labels.get("from") == "people"
    compared = "first_instance" in plan
    return {
        "version": 1,
        "charging": _charging(plan),
        "labelling": {name: labels[name] for name in ("seconds", "lease_seconds")} if people else None,
        "cells": plan["model"]["cardinality"] if compared else None,
        "ticks": not compared and "arrival" not in plan,
        "fit": _fit(plan),
    }


def _charging(plan: dict[str, Any]) -> dict[str, Any]:
    if "arrival" in plan:
        return {"when": "arrival", "event": plan["arrival"]["noise"]}
    if "first_instance" in plan:
        first = {name: plan["first_instance"][name] for name in ("opened", "scale")}
        return {"when": "opening", "event": {"added_to": "comparisons", **first}}
    return {"when": "release"}


def _fit(plan: dict[str, Any]) -> dict[str, int]:
    model, fits = plan.get("model", {}), plan.get("fits", ())
    rows, columns = model.get("shape") or (1, model.get("cardinality") or 1)
    stated = [model.get("steps"), model.get("passes"), *(each["noise"].get("steps") for each in fits)]
    return {
        "records": max((each["records"] or 0 for each in fits), default=0),
        "rows": rows,
        "columns": columns,
        "encoder": model.get("encoder", {}).get("dimension", 0),
        "passes": max(each or 0 for each in stated),
        "descent_passes": model.get("passes") or 0,
    }


def _digest(content: dict[str, Any]) -> str:
    """As service/store/digests.py."""
    try:
        packed = rfc8785.dumps(content)
    except rfc8785.IntegerDomainError:
        packed = rfc8785.dumps(_readable(content))
    return hashlib.sha256(packed).hexdigest()


def _readable(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _readable(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_readable(value) for value in content]
    return str(content) if type(content) is int and abs(content) >= 2**53 else content
