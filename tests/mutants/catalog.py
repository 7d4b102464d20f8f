"""All faults, in the order of the table."""

from __future__ import annotations

from .databases import DATABASES
from .features import FEATURES
from .leases import LEASES
from .manager import MANAGER

MUTANTS = (*MANAGER, *DATABASES, *LEASES, *FEATURES)
