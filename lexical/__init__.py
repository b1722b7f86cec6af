"""Lexical ranking with numpy and numba alone: BM25, Model 1 with a translation table, fusion, explanations, runs."""
