"""Graph passes: one file a pass, each takes a graph and gives a new one."""
