//! The snapshot's persistent exception store (`drivers/md/dm-snap-persistent.c`, 6.12): see docs/formats/snapshot.md.
