"""A cheaper copy of a target as its own draft: made, and searched for."""
