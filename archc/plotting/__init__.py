"""Charts of what models cost, with matplotlib, which is imported when something is drawn."""
