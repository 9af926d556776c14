"""First-party kinds, one class a file, registered through the same entry points as anyone's."""
