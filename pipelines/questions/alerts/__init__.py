"""Alerts: public rules about numbers of people, tested in every window."""
