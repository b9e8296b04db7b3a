"""Heavy hitters: the items that many people have, which nobody needs to name beforehand."""
