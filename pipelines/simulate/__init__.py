"""`privstream simulate`: events to try things out on, with the truth beside them."""
