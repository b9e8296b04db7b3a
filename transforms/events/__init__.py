"""From events to bounded columnar batches, and to dead letters what cannot be used."""
