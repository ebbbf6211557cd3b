use super::*;
use proptest::prelude::*;
use udm_base::{DevT, Errno, Sector, Sectors};

#[test]
fn ioctl_numbers() {
    // As `printf("0x%x", DM_VERSION)` and its fellows print on x86-64 and arm64.
    assert_eq!(Command::Version.ioctl_number(), 0xc138_fd00);
    assert_eq!(Command::GetTargetVersion.ioctl_number(), 0xc138_fd11);
    for &command in Command::ALL {
        assert_eq!(Command::from_ioctl_number(command.ioctl_number()), Ok(command));
    }
    for bad in [0, 0xc138_fe00, 0xc138_fd12, u32::MAX] {
        assert_eq!(Command::from_ioctl_number(bad).unwrap_err().errno, Errno::ENOTTY, "{bad:#x}");
    }
}

#[test]
fn flag_bits() {
    assert_eq!(Flags::READONLY.bits(), 1);
    assert_eq!(Flags::BUFFER_FULL.bits(), 0x100);
    assert_eq!(Flags::IMA_MEASUREMENT.bits(), 0x80000);
    assert_eq!(format!("{:?}", Flags::SUSPEND | Flags::from_bits(4)), "{SUSPEND, 0x4}");
}

fn parse(command: Command, buf: &[u8]) -> Result<Request<'_>, CodecError> {
    Request::parse(command.ioctl_number(), buf)
}

#[test]
fn requests_that_the_kernel_refuses() {
    let check = |command: Command, change: fn(&mut DmIoctl), expect: &str| {
        let mut header = DmIoctl { data_size: 312, ..DmIoctl::new() };
        change(&mut header);
        let bytes = zerocopy::IntoBytes::as_bytes(&header);
        let error = parse(command, bytes).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(error.message.contains(expect), "{error} lacks {expect}");
    };
    check(Command::DevStatus, |h| h.version[0] = 3, "the caller 3.48.0");
    check(Command::Version, |h| h.version[1] = 49, "the caller 4.49.0");
    check(Command::DevStatus, |h| h.data_size = 304, "data_size is 304: expected 305 to 312");
    check(Command::TableLoad, |h| h.data_size = 313, "data_size is 313");
    check(Command::DevCreate, |_| (), "without a name");
    check(Command::DevStatus, |h| assert!(h.set_name(b"a") && h.set_uuid(b"b")), "both a name and a uuid");
    assert!(parse(Command::DevStatus, &[0; 304]).is_err());
}

#[test]
fn only_an_answer_has_these_flags() {
    let sent = Flags::BUFFER_FULL | Flags::UEVENT_GENERATED | Flags::SECURE_DATA | Flags::DATA_OUT | Flags::NOFLUSH;
    let bytes = RequestBuilder::new(Command::DevSuspend).name(b"a").flags(sent).build().unwrap();
    let request = parse(Command::DevSuspend, &bytes).unwrap();
    assert_eq!(request.flags(), Flags::NOFLUSH);
    assert!(request.is_secure());
}

#[test]
fn device_keys() {
    let check = |build: fn(RequestBuilder) -> RequestBuilder, expect: Option<DeviceKey<'_>>| {
        let bytes = build(RequestBuilder::new(Command::DevStatus)).build().unwrap();
        assert_eq!(parse(Command::DevStatus, &bytes).unwrap().device_key(), expect);
    };
    let dev = DevT::new(253, 3);
    check(|b| b.name(b"a"), Some(DeviceKey::Name(b"a")));
    check(|b| b.uuid(b"u"), Some(DeviceKey::Uuid(b"u")));
    check(|b| b.dev(DevT::new(253, 3)), Some(DeviceKey::Dev(dev)));
    check(|b| b.name(b"a").dev(DevT::new(253, 3)), None);
    check(|b| b.uuid(b"u").dev(DevT::new(253, 3)), None);
    check(|b| b, None);
}

#[test]
fn builder_refuses_what_does_not_fit() {
    let check = |builder: RequestBuilder, expect: &str| {
        let error = builder.build().unwrap_err();
        assert!(error.message.contains(expect), "{error} lacks {expect}");
    };
    let new = || RequestBuilder::new(Command::TableLoad);
    check(new().name(&[b'x'; 128]), "at most 127 bytes");
    check(new().uuid(&[b'x'; 129]), "at most 128 bytes");
    check(new().name(b"a\0b"), "no zero");
    check(new().text(b"a\0b"), "zero byte");
    let spec =
        |kind: &'static [u8], params: &'static [u8]| TargetSpec::new(Sector::ZERO, Sectors::new(1), kind, params);
    check(new().targets([spec(b"sixteen-bytes-xx", b"")]), "at most 15 bytes");
    check(new().targets([spec(b"linear", b"a\0")]), "zero byte");
    assert!(new().name(&[b'x'; 127]).uuid(&[b'x'; 128]).build().is_ok());
}

/// A table load of two targets, broken by `change`, as the request's error.
fn broken_table(change: fn(&mut Vec<u8>)) -> String {
    let spec = |params| TargetSpec::new(Sector::ZERO, Sectors::new(8), b"linear", params);
    let mut bytes = RequestBuilder::new(Command::TableLoad)
        .name(b"a")
        .capacity(0)
        .targets([spec(b"/dev/ram0 0"), spec(b"/dev/ram1 0")])
        .build()
        .unwrap();
    change(&mut bytes);
    parse(Command::TableLoad, &bytes).unwrap().targets().unwrap_err().message
}

#[test]
fn tables_that_the_kernel_refuses() {
    let check = |change: fn(&mut Vec<u8>), expect: &str| {
        let error = broken_table(change);
        assert!(error.contains(expect), "{error} lacks {expect}");
    };
    // The offsets are those of dm_ioctl.target_count, .data_start and the first record's next.
    check(|b| b[20] = 0, "no targets");
    check(|b| b[20] = 3, "target 3 of 3");
    check(|b| b[16] = 0, "target 1 of 2: its record overlaps");
    check(|b| b[16..20].fill(0xff), "not aligned");
    check(|b| b[16..20].copy_from_slice(&0xffff_fff8u32.to_ne_bytes()), "past the end");
    check(|b| b[312 + 20] = 40, "target 2 of 2: its record overlaps");
    check(|b| b[312 + 20] += 4, "not aligned");
    check(|b| b.iter_mut().skip(312 + 56).for_each(|x| *x |= 1), "target 2 of 2");
    check(
        |b| {
            let len = b.len();
            b[len - 8..].fill(1);
        },
        "not ended by a zero",
    );
}

#[test]
fn texts() {
    let request = |command, text: &[u8]| RequestBuilder::new(command).name(b"a").text(text).build().unwrap();
    let name = |text: &[u8]| {
        parse(Command::DevRename, &request(Command::DevRename, text)).unwrap().new_name().map(<[u8]>::to_vec)
    };
    assert_eq!(name(b"new").unwrap(), b"new");
    assert!(name(b"").unwrap_err().message.contains("empty"));
    assert!(name(&[b'x'; 128]).unwrap_err().message.contains("at most 127"));

    let geometry =
        |text: &[u8]| parse(Command::DevSetGeometry, &request(Command::DevSetGeometry, text)).unwrap().geometry();
    assert_eq!(
        geometry(b"1024 255 63 0").unwrap(),
        Geometry { cylinders: 1024, heads: 255, sectors: 63, start: Sector::ZERO }
    );
    for bad in ["", "1 2 3", "1 2 3 4 5", "1 2 3 x", "65536 1 1 0", "1 256 1 0", "1 1 256 0"] {
        assert_eq!(geometry(bad.as_bytes()).unwrap_err().errno, Errno::EINVAL, "{bad}");
    }
}

/// Answer a request of `room` bytes of data by `fill`.
fn answer(command: Command, flags: Flags, room: usize, fill: impl Fn(&mut Reply)) -> Vec<u8> {
    let bytes = RequestBuilder::new(command).name(b"a").flags(flags).capacity(HEADER_LEN + room).build().unwrap();
    let mut reply = Reply::to(&parse(command, &bytes).unwrap());
    fill(&mut reply);
    let out = reply.finish();
    assert!(out.len() <= HEADER_LEN + room, "{} bytes for {room}", out.len());
    out
}

#[test]
fn full_buffers() {
    let dev = DevT::new(253, 0);
    let names = |reply: &mut Reply| reply.names([NameEntry { dev, name: b"abc", event_nr: 1, uuid: Some(b"u") }]);
    let status = |reply: &mut Reply| {
        let spec = TargetSpec::new(Sector::ZERO, Sectors::new(8), b"zero", b"1234567");
        reply.targets([spec.clone(), spec]);
    };
    let check = |room: usize, fill: &dyn Fn(&mut Reply), full: bool| {
        let out = answer(Command::TableStatus, Flags::UUID, room, fill);
        assert_eq!(Response::parse(&out).unwrap().is_full(), full, "room {room}");
    };
    // 12 + "abc\0" is 16, the tail 8, the uuid 8.
    check(31, &names, true);
    check(32, &names, false);
    // A count and one number.
    check(15, &|r| r.deps(&[dev]), true);
    check(16, &|r| r.deps(&[dev]), false);
    // Two records of 48: one that ends with the room may have been cut.
    check(96, &status, true);
    check(97, &status, false);
    check(7, &|r| r.names([]), true);
    check(16, &|r| r.names([]), false);
    check(4, &|r| r.message_output(b"abc"), true);
    check(5, &|r| r.message_output(b"abc"), false);
    // What fits of a status is there, and the count is the table's.
    let out = answer(Command::TableStatus, Flags::default(), 96, status);
    assert_eq!(Response::parse(&out).unwrap().header().target_count, 2);
    assert_eq!(Response::parse(&out).unwrap().header().data_size as usize, HEADER_LEN + 48);
}

#[test]
fn an_answer_without_data() {
    let out = answer(Command::DevStatus, Flags::default(), 0, |_| ());
    let response = Response::parse(&out).unwrap();
    assert_eq!(response.header().data_size as usize, MIN_DATA_SIZE);
    assert_eq!(response.names().unwrap(), []);
    assert_eq!(response.deps().unwrap(), []);
    assert_eq!(response.versions().unwrap(), []);
    assert_eq!(response.targets().unwrap(), []);
    assert_eq!(response.message_output().unwrap(), None);
    assert_eq!(Response::parse(&Reply::version_only()).unwrap().header().version, INTERFACE_VERSION);
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8..=255, 0..40)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8..=255, 1..DM_MAX_TYPE_NAME)
}

fn dev() -> impl Strategy<Value = DevT> {
    (1u32..4096, 0u32..1 << 20).prop_map(|(major, minor)| DevT::new(major, minor))
}

type OwnedSpec = (u64, u64, Vec<u8>, Vec<u8>);

fn specs(owned: &[OwnedSpec]) -> Vec<TargetSpec<'_>> {
    owned.iter().map(|(s, l, k, p)| TargetSpec::new(Sector::new(*s), Sectors::new(*l), k, p)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn tables_round_trip(owned in prop::collection::vec((any::<u64>(), any::<u64>(), name(), word()), 1..9)) {
        let bytes = RequestBuilder::new(Command::TableLoad).name(b"a").targets(specs(&owned)).build().unwrap();
        let request = parse(Command::TableLoad, &bytes).unwrap();
        prop_assert_eq!(request.targets().unwrap(), specs(&owned));

        let out = answer(Command::TableStatus, Flags::STATUS_TABLE, 1 << 16, |r| r.targets(specs(&owned)));
        prop_assert_eq!(Response::parse(&out).unwrap().targets().unwrap(), specs(&owned));
    }

    #[test]
    fn messages_round_trip(sector: u64, text in word()) {
        let bytes = RequestBuilder::new(Command::TargetMsg).message(Sector::new(sector), &text).build().unwrap();
        let request = parse(Command::TargetMsg, &bytes).unwrap();
        prop_assert_eq!(request.message().unwrap(), (Sector::new(sector), &text[..]));
        let out = answer(Command::TargetMsg, Flags::default(), 4096, |r| r.message_output(&text));
        prop_assert_eq!(Response::parse(&out).unwrap().message_output().unwrap(), Some(&text[..]));
    }

    #[test]
    fn lists_round_trip(
        owned in prop::collection::vec((dev(), name(), any::<u32>(), prop::option::of(name())), 0..9),
        with_uuids: bool,
    ) {
        let entries = |with: bool| owned.iter().map(move |(dev, name, event_nr, uuid)| NameEntry {
            dev: *dev, name, event_nr: *event_nr, uuid: uuid.as_deref().filter(|_| with),
        });
        let flags = if with_uuids { Flags::UUID } else { Flags::default() };
        let out = answer(Command::ListDevices, flags, 4096, |r| r.names(entries(true)));
        prop_assert_eq!(Response::parse(&out).unwrap().names().unwrap(), entries(with_uuids).collect::<Vec<_>>());

        let versions = || owned.iter().map(|(_, name, n, _)| TargetVersion { name, version: [*n, 1, 2] });
        let out = answer(Command::ListVersions, Flags::default(), 4096, |r| r.versions(versions()));
        prop_assert_eq!(Response::parse(&out).unwrap().versions().unwrap(), versions().collect::<Vec<_>>());

        let devs: Vec<DevT> = owned.iter().map(|o| o.0).collect();
        let out = answer(Command::TableDeps, Flags::default(), 4096, |r| r.deps(&devs));
        prop_assert_eq!(Response::parse(&out).unwrap().deps().unwrap(), devs);
    }

    #[test]
    fn any_bytes_are_read_without_panic(
        number in prop_oneof![any::<u32>(), (0u32..20).prop_map(|nr| 0xc138_fd00 | nr)],
        start in prop_oneof![any::<u32>(), 296u32..340],
        count in prop_oneof![any::<u32>(), 0u32..4],
        size in prop_oneof![any::<u32>(), 300u32..600],
        mut bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(40u8), 1 => any::<u8>()], 0..600),
    ) {
        if bytes.len() >= 24 {
            for (at, value) in [(0, 4), (4, 48), (12, size), (16, start), (20, count)] {
                bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
        }
        if let Ok(request) = Request::parse(number, &bytes) {
            let _ = (request.targets(), request.new_name(), request.message(), request.geometry(), request.device_key());
            let out = Reply::to(&request).finish();
            prop_assert!(Response::parse(&out).is_ok());
        }
        if let Ok(response) = Response::parse(&bytes) {
            let _ = (response.names(), response.targets(), response.deps(), response.versions(), response.message_output());
        }
    }
}
