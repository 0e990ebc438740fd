"""Layers driven one by one in a loop: what each keeps, on which device."""
