"""Text -> fields -> index -> candidates -> pairs, lists, bitext."""
