"""The sparse vector technique, and what answers queries with it."""
