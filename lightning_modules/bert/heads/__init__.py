"""Prediction heads over contextual vectors: one per file, free of Lightning, usable alone."""
