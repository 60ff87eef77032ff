"""Call records to counts per city and ten minutes; see pipeline.yaml."""
