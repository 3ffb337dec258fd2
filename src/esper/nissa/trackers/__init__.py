"""Trackers: the figures of every round of a run, sent to TensorBoard, W&B or MLflow."""
