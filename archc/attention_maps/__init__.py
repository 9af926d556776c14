"""Maps of attention: how much each token's output takes from every token, and pictures of that."""
