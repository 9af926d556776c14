"""Reports: one HTML page that holds a spec's closed forms and evaluates them, so that its numbers are the command line's."""
