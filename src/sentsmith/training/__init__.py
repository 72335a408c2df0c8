"""What all recipes share: settings, trainer, checkpoint selection, resuming, the run record."""
