"""The items of a public list that most people hold, window by window."""
