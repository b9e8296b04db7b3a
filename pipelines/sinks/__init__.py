"""Where rows and dead letters go: files that appear whole or not at all."""
