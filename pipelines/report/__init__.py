"""`privstream report`, `serve`, `plot` and `explain`: results as pages that need no network, pictures and text."""
