"""Translates names between a tenant's clients and the cluster. No other package does."""
