"""The transforms in Beam YAML."""
