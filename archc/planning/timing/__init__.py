"""Times by a roofline, and FLOP conventions of papers."""
