"""Private distributions of what each person contributes, and the limits that follow from them."""
