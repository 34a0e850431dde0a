"""Erases the records of keys from a topic: finds them, rewrites objects without them, verifies, and logs."""
