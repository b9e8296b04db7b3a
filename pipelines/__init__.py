"""The `privstream` command: pipelines, file formats, demo data and plots."""
