"""What people contribute to a question: private distributions, and the limits that they suggest."""
