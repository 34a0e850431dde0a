"""The main job on real input, end to end: `tailrace demo`. The cluster's integration test drives the same code."""
