"""What is shown of results: tables, charts, and all sentences."""
