"""What a pass is asked for, and what its numbers say."""
