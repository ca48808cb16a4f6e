"""Records a run on a card, real or virtual, through PyTorch's own hooks."""
