"""Text of others to settings, each with its source. Nothing that is read is run."""
