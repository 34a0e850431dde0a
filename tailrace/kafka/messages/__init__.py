"""Kafka's messages, one module per API. Each is declared once for all versions, with the types of schema.py.

They follow the message definitions of Kafka 4.3.
"""
