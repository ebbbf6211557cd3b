//! `nbdinfo`: the size, what the export can, and what is allocated.

use super::run;
use crate::kinds::{Nature, SIZE, Subject};
use serde_json::Value;

pub(super) fn check(subject: &Subject) {
    let uri = subject.uri();
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), SIZE.to_string());
    let text = run("nbdinfo", &["--json", "--no-content", &uri]);
    let info: Value = serde_json::from_str(&text).expect("JSON");
    let export = &info["exports"][0];
    let read_only = subject.nature == Nature::ReadOnly;
    for (key, expect) in [
        ("export-name", Value::from("dev")),
        ("export-size", SIZE.into()),
        ("is_read_only", read_only.into()),
        ("can_multi_conn", true.into()),
        ("can_flush", true.into()),
        ("can_trim", (!read_only).into()),
        ("can_zero", (!read_only).into()),
        ("can_df", true.into()),
        ("can_cache", true.into()),
        ("block_size_minimum", 512.into()),
        ("block_size_maximum", (32 << 20).into()),
    ] {
        assert_eq!(export[key], expect, "{key} in\n{text}");
    }
    assert!(export["contexts"].as_array().is_some_and(|c| c.contains(&"base:allocation".into())), "{text}");

    let text = run("nbdinfo", &["--map", "--json", &uri]);
    let map: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mut end = 0;
    for extent in &map {
        assert_eq!(extent["offset"], end, "extents follow each other:\n{text}");
        end += extent["length"].as_u64().expect("a length");
    }
    assert_eq!(end, SIZE, "the extents cover the device:\n{text}");
    if subject.nature == Nature::Zeroes {
        let all = map.iter().all(|extent| extent["description"] == "hole,zero");
        assert!(all, "a device of zeroes has no data:\n{text}");
    }
}
