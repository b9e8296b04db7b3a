"""The items of a public list that most people have, window by window."""
