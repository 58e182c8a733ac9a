use proptest::prelude::*;

use super::{ModinfoError, depends, normalize};
use crate::packages::testing::module;

#[test]
fn dependencies_are_read_in_their_order() {
    let file = module("name=kvm_amd\0depends=kvm,ccp,irq-bypass\0license=GPL\0");
    assert_eq!(depends(&file).unwrap(), ["kvm", "ccp", "irq_bypass"]);
}

#[test]
fn a_module_without_dependencies_has_none() {
    assert_eq!(depends(&module("depends=\0")).unwrap(), [""; 0]);
    assert_eq!(depends(&module("license=GPL\0")).unwrap(), [""; 0]);
}

#[test]
fn a_key_that_only_ends_in_depends_is_another_key() {
    let file = module("parmdepends=wrong\0softdepends=wrong\0depends=right\0");
    assert_eq!(depends(&file).unwrap(), ["right"]);
}

#[test]
fn other_files_are_named_as_such() {
    assert_eq!(depends(b""), Err(ModinfoError::NotElf));
    assert_eq!(depends(b"#!/bin/sh\n"), Err(ModinfoError::NotElf));
    let mut other = module("depends=\0");
    let at = other
        .windows(9)
        .position(|bytes| bytes == b".modinfo\0")
        .unwrap();
    other[at + 1] = b'M';
    assert_eq!(depends(&other), Err(ModinfoError::NoModinfo));
}

#[test]
fn a_module_that_is_cut_short_is_refused_at_any_length() {
    let file = module("depends=kvm\0");
    for length in 0..file.len() {
        assert!(depends(&file[..length]).is_err(), "cut to {length}");
    }
}

#[test]
fn both_spellings_are_one_name() {
    assert_eq!(normalize("virtio-mem"), normalize("virtio_mem"));
}

proptest! {
    #[test]
    fn damaged_modules_never_panic(
        changes in prop::collection::vec((0usize..4096, any::<u8>()), 1..12),
    ) {
        let mut file = module("depends=kvm,ccp\0");
        for (at, value) in changes {
            let at = at % file.len();
            file[at] = value;
        }
        if let Ok(names) = depends(&file) {
            prop_assert!(names.iter().all(|name| name.len() <= file.len()));
        }
    }
}
