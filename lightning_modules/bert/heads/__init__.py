"""Prediction heads over contextual vectors: one a file, free of Lightning, usable alone."""
