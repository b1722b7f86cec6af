"""Everything that ranks without torch: BM25, forward index, runs, fusion."""
