"""Listeners that every run has, unless ``run.without`` names them: metrics file, TensorBoard, progress display."""
