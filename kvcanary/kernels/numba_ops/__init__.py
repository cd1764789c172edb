"""Compiled inner loops of the numba backend, one op per module: functions over numpy views and addresses, callable from any thread.

They take no locks, touch no Python objects and check nothing that the contract has checked. Hash values are uint64, slots and table
cells int64; numba turns a mix of the two into float64, hence the casts. Loops run over uint64 indices, because a signed index makes
numba emit the wrap-around of negative indices on every access.
"""
