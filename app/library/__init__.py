"""Models on disk, where they come from, and whether a pair fits."""
