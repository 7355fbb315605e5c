"""Device plugins: programs that find devices of the node, say how they are, and say what a task needs to use them."""
