"""What the pictures of each question show."""
