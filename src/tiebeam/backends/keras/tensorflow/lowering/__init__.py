"""From a flat function graph to core's graph."""
