"""How long a test waits for something that should happen.

Longer than a machine takes that is ten times slower and stops for seconds, and shorter than `faulthandler_timeout`: a
test that hangs fails with its own message.
"""

PATIENCE_SECONDS = 240.0
