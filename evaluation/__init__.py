"""Measures, results table. Knows neither the trainer nor W&B."""
