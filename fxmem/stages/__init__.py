"""A step cut for several devices, of one process or of many."""
