"""What is timed, and what takes real models."""
