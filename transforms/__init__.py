"""Apache Beam transforms around the mechanisms."""

from privstream.transforms.dead_letters import DeadLetter
from privstream.transforms.domain import Domain
from privstream.transforms.heavy_hitters import Published, ShiftingHeavyHitters
from privstream.transforms.rows import HeavyHitter

__all__ = ["DeadLetter", "Domain", "HeavyHitter", "Published", "ShiftingHeavyHitters"]
