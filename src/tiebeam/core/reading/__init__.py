"""Who reads which table, in which role, through what: facts from a graph alone."""
