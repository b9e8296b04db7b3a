"""Top-k: the items of a public list that most people have."""
