"""The parts that all tables have in common."""

from sqlalchemy import BigInteger, Column, DateTime, Identity, MetaData, func

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def identity() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def now(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())
