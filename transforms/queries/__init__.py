"""Linear queries about a data set, answered online."""
