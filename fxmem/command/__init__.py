"""What the `fxmem` command shares and shows."""
