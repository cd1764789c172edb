"""The memory side of a serving engine, simulated: pool, request table, radix cache, scheduler."""
