"""`privstream report`: results as one page that needs no network."""
