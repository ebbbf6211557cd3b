//! What most devices of these tests are alike in: all but what they do with bios.

/// The rest of an `impl BlockDevice`: a device of this name and of so many sectors, with the usual limits.
macro_rules! plain_device {
    ($name:literal, $sectors:literal) => {
        fn sectors(&self) -> ::udm_base::Sectors {
            ::udm_base::Sectors::new($sectors)
        }
        fn limits(&self) -> ::udm_io::Limits {
            ::udm_io::Limits::default()
        }
        fn id(&self) -> ::udm_io::DeviceId {
            ::udm_io::DeviceId::Anonymous(::std::ptr::from_ref(self) as usize)
        }
        fn name(&self) -> String {
            $name.into()
        }
        fn as_any(&self) -> &dyn ::std::any::Any {
            self
        }
    };
}
