"""`privstream plot`: results as pictures."""
