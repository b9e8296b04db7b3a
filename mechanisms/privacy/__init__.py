"""What is promised: guarantees as data, privacy curves, composition."""
