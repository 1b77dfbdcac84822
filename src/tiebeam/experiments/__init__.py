"""Reproducible experiments: each returns data and tells its progress through a callable; none prints."""
