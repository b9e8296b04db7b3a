"""What a run is asked: pydantic models, from which options, YAML, Python, schemas and pages are made. No Beam."""
