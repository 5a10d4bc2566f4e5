"""A service that all tests of a folder share: import it in the folder's conftest. The folder has to be a package."""

from collections.abc import Iterator

import pytest

from service.embedded import Servers
from tests.conftest import Service, new_service


@pytest.fixture(scope="package")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with new_service(servers, tmp_path_factory) as service:
        yield service
