"""Bridges to torch.compile and to training frameworks."""
