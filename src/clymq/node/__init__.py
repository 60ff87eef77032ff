"""Puts the parts of a process together: what the server commands run, and what tests run inside their own process."""
