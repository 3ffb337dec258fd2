"""Run folders: where a run lives, what it resumes from, how it is stopped."""
