"""What reads the last layer."""
