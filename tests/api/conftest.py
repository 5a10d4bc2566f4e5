"""Tests of the API share a service."""

from tests import folder_service

service = folder_service.service
