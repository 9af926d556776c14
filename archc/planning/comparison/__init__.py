"""What is otherwise between specs, and their costs side by side."""
