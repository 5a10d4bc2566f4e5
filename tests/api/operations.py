"""Every call of the HTTP interface, from the routes: to make the OpenAPI document would take most of a second."""

from fastapi.routing import APIRoute

from service.api.app import create_app
from service.settings import Settings

ROUTES = [
    route
    for route in create_app(Settings(_env_file=None)).routes
    if isinstance(route, APIRoute) and route.include_in_schema
]
OPERATIONS = sorted((method.lower(), route.path_format) for route in ROUTES for method in route.methods)
"""Method and path of each; tests/api/test_openapi.py compares them with the document."""
