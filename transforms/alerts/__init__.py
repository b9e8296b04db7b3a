"""Public rules about numbers of people, or about measurements, that are met."""
