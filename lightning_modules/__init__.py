"""The rankers: one file a ranker."""
