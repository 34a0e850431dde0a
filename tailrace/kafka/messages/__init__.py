"""Kafka's messages, one module per API, each declared once for all versions (schema.py says how).

The facts are those of Kafka 4.3's message definitions.
"""
