"""The client: administration, producing and consuming. Knows the verbs, and nothing of the servers behind them."""
