"""Trainers take runs and train them: same results, different speed."""
