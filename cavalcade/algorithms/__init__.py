"""What is learned: one file per algorithm, readable in execution order."""
