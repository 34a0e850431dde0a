"""Records of keys erased from a topic: found, rewritten without, proved, and logged."""
