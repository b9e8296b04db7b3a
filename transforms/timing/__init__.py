"""Windows as steps, and stateful stages that handle every step once, in order."""
