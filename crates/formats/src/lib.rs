//! Floor 4: what lies on disk beneath a target, read and written byte for byte as the kernel does. The targets and the
//! tools (`udm thin check`, `udm snapshot info`) share it; no bio, no table and no mapped device is known here.

pub mod snapshot;
pub mod thin;
