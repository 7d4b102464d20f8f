from __future__ import annotations

from tests.faults.conftest import proxied

__all__ = ["proxied"]
