"""Where rows and dead letters go: files that appear whole or not at all; the terminal, tables, topics, the web."""
