"""The questions: what each is asked with and promises (no Beam), and beside it, in `_stages`, how it is answered."""
