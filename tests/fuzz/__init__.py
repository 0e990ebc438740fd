"""Random modules under random budgets, against eager."""
