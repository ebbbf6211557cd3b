//! XML that cannot be restored is refused with its line; nothing is left that could be taken for a pool.

use udm_formats::thin::tools::Error;

use super::support::{Memory, clean, restored, udm};

const HEAD: &str = "<superblock uuid=\"\" time=\"1\" transaction=\"2\" data_block_size=\"128\" nr_data_blocks=\"100\">";
const DEVICE: &str = "<device dev_id=\"1\" mapped_blocks=\"1\" transaction=\"0\" creation_time=\"0\" snap_time=\"0\">";

fn check(xml: &str, words: &[&str]) {
    let memory = Memory::new(64);
    let overrides = udm_formats::thin::tools::restore::Overrides::default();
    let done = udm_formats::thin::tools::restore::restore(&memory.io(), &mut xml.as_bytes(), overrides, &mut ());
    let error = done.expect_err(xml).to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{xml}\n{error}");
    assert!(memory.image()[..4096].iter().all(|b| *b == 0), "no superblock: {xml}");
}

#[test]
fn bad_xml() {
    let single = |data: u64| format!("<single_mapping origin_block=\"0\" data_block=\"{data}\" time=\"0\"/>");
    check("", &["<superblock>"]);
    check("hello", &["line 1", "text"]);
    check("<pool>", &["line 1", "<pool>", "<superblock>"]);
    check("<!DOCTYPE x>", &["line 1", "document type"]);
    check("<superblock", &["line 1", "cut short"]);
    check("<superblock uuid=x>", &["NAME=\"VALUE\""]);
    check("<superblock uuid=\"\">", &["<superblock> has no time"]);
    check(&HEAD.replace("\"128\"", "\"100\""), &["line 1", "data_block_size is 100"]);
    check(&HEAD.replace("time=\"1\"", "time=\"-1\""), &["time is \"-1\""]);
    check(&HEAD.replace("time=\"1\"", "time=\"1\" time=\"1\""), &["time twice"]);
    check(HEAD, &["ends too early"]);
    check(&format!("{HEAD}\n</device>"), &["line 2", "</device>"]);
    check(&format!("{HEAD}\n{DEVICE}\n{}", single(100)), &["line 3", "100"]);
    check(&format!("{HEAD}\n{DEVICE}\n{}\n{}", single(1), single(2)), &["line 4", "mapped twice"]);
    check(&format!("{HEAD}{DEVICE}</device>\n{DEVICE}"), &["line 2", "there twice"]);
    check(&format!("{HEAD}</superblock>{HEAD}"), &["behind </superblock>"]);
    let range = "<range_mapping origin_begin=\"18446744073709551615\" data_begin=\"0\" length=\"2\" time=\"0\"/>";
    check(&format!("{HEAD}{DEVICE}\n{range}"), &["line 2"]);
    check(&format!("{HEAD}{}", " ".repeat(1 << 17)), &["bytes without"]);
    check(&HEAD.replace("\"100\"", "\"1099511627776\""), &["no free metadata block"]);
}

#[test]
fn other_ways_to_write_it() {
    let xml = format!(
        "<?xml version='1.0'?>\n<!-- a > b -->\n{}\n<device\n dev_id='7' mapped_blocks=\"99\" transaction=\"0\" \
         creation_time=\"0\" snap_time=\"0\" ><single_mapping origin_block=\"5\" data_block=\"6\" time=\"0\"></single_mapping>\
         <range_mapping origin_begin=\"0\" data_begin=\"9\" length=\"3\" time=\"1\"/></device></superblock>",
        HEAD.replace("uuid=\"\"", "uuid=\"a&lt;b\"")
    );
    let memory = restored(&xml, 64).expect("it is a pool");
    clean(&memory);
    let dumped = udm(&memory, "thin_dump", &[]).expect("it dumps");
    assert!(dumped.contains("mapped_blocks=\"4\""), "counted, not believed: {dumped}");
    let (a, b) = (dumped.find("origin_begin=\"0\""), dumped.find("origin_block=\"5\""));
    assert!(a.is_some() && a < b, "in order: {dumped}");
    assert_eq!(&memory.image()[16..19], b"a<b");
}

#[test]
fn metadata_too_small() {
    let Err(Error::Xml { .. } | Error::Thin(_)) = restored(&format!("{HEAD}</superblock>"), 2) else {
        panic!("two blocks are no pool");
    };
}
