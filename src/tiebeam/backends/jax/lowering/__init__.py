"""From jaxprs to core's graph."""
