"""Steps from each schema of the store to the next; applied when a store is opened."""
