"""What turns text into ids."""
