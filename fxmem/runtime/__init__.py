"""What runs inside a training step beside the operators themselves."""
