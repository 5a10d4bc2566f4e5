"""Versions: beside which others this database may be used."""

from sqlalchemy import Column, Table, Text

from service.store.tables.base import metadata

served_schemas = Table("served_schemas", metadata, Column("revision", Text, primary_key=True))
"""The schemas for which a version of the service that runs may have been written; migrations alone write this."""
