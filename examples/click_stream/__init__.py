"""Clicks to sessions; see pipeline.yaml."""
