"""From elements of any form to checked Arrow batches, and dead letters for what cannot be used."""
