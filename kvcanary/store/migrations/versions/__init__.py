"""One module per step. A step is frozen once it was released: it names its own tables and never reads `schema`."""
