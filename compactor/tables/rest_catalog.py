"""pyiceberg's client of a REST catalog, with an end to each request: pyiceberg sets no timeout."""

from __future__ import annotations

from typing import Any

import requests
from pyiceberg import catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import merge_config

from compactor.tables.table import CatalogSilent, CatalogUnavailable

ANSWER_SECONDS = 30.0
"""How long the catalog may take to accept a connection, and to send the next bytes of its answer."""


def open_rest_catalog(name: str, **properties: str) -> RestCatalog:
    """Open the catalog like pyiceberg's `load_catalog`, which takes credentials from the environment."""
    configured = catalog._ENV_CONFIG.get_catalog_config(name) or {}
    return _TimedCatalog(name, **merge_config(configured, dict(properties)))


class _TimedCatalog(RestCatalog):  # type: ignore[misc]
    """Its calls raise CatalogUnavailable, or CatalogSilent, if the catalog does not answer."""

    def _config_headers(self, session: requests.Session) -> None:
        """Prepare a new session. pyiceberg calls this before the session's first request."""
        send = session.request

        def request(*args: Any, **options: Any) -> requests.Response:
            try:
                return send(*args, **{"timeout": ANSWER_SECONDS, **options})
            except requests.Timeout as error:
                raise CatalogSilent(
                    f"the catalog did not answer within {ANSWER_SECONDS:g} s; check tables.catalog"
                ) from error
            except requests.ConnectionError as error:
                raise CatalogUnavailable(
                    f"the catalog can't be reached ({error}); check tables.catalog"
                ) from error

        session.request = request  # type: ignore[method-assign]
        super()._config_headers(session)
