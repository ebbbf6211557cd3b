//! Thin pool metadata (`drivers/md/dm-thin-metadata.c`, 6.12): see docs/formats/thin.md.
