"""What turns ids into vectors."""
