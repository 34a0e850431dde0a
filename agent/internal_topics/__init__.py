"""Copies of groups and transactional ids in Kafka's internal topics, for tools that read them (decision 80)."""
