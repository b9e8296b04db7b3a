"""`privstream suggest`: limits that nobody must guess."""
