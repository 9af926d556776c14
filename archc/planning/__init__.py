"""What a model needs to be served and trained: memory a rank, time, comparisons. Read off the graph; never imports torch."""
