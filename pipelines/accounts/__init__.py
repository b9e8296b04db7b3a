"""What a run is, and what all runs on a data set have cost."""
