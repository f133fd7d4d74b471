"""The local half of a run: batches, augmentation, learners and the one local loop."""
