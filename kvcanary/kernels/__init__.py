"""Plan, stamp and verify: one contract, four implementations, equal bytes."""
