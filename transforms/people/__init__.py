"""Shards of people: events by window and person, and what counts of them within each person's limits."""
