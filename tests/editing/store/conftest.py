"""Articles and their edit locks on each database, at each level of isolation."""

from tests.leases.conftest import alias, place

__all__ = ["alias", "place"]
