"""Combinatorial core: numbers in, numbers out; installed as fxmem.solvers."""
