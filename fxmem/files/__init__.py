"""Plans and schedules on disk."""
