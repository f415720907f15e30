"""What a program runs on. Runtimes know nodes, handles and trees, and nothing about learning."""
