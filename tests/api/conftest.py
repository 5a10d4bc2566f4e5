"""Tests of the API share a service."""

from tests.folder_service import service  # noqa: F401 - a fixture
