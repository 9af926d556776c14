"""For authors of kinds: the contract that every kind keeps."""
