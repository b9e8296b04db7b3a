"""How many people are in a set now, from events of people who come and go."""
