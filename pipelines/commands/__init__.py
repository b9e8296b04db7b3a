"""Commands that watch events, and the options they share."""
