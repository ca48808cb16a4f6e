"""The layers of a dense transformer: attention, MLP, norms, embedding, loss."""
