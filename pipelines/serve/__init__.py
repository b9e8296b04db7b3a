"""`privstream serve`: a page that shows results as they come."""
