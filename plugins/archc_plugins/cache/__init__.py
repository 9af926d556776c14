"""How declared state is stored."""
