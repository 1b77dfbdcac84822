"""Whether to tie: arithmetic and evidence."""
