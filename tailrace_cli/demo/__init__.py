"""`tailrace demo`: the main job on real data, end to end. The cluster's integration test runs the same code."""
