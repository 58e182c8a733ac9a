use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use cpio::newc::Reader;
use proptest::prelude::*;

use super::{FileArgument, Initramfs, clean};

/// All entries of one archive: path, mode with type, content, in order.
fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let mut reader = Reader::new(bytes).unwrap();
        if reader.entry().is_trailer() {
            return found;
        }
        let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        bytes = reader.finish().unwrap();
        found.push((name, mode, content));
    }
}

#[test]
fn entries_come_with_their_types_and_parents_once() {
    let mut archive = Initramfs::new();
    archive.file("/init", 0o755, b"#!/bin/sh\n").unwrap();
    archive.file("lib/modules/a.ko", 0o644, b"a").unwrap();
    archive.file("lib//modules/./b.ko", 0o644, b"").unwrap();
    archive.directory("lib").unwrap();
    archive.symlink("bin/sh", "busybox").unwrap();
    let found = entries(&archive.finish().unwrap());
    let short: Vec<(&str, u32, &[u8])> = found
        .iter()
        .map(|(name, mode, content)| (name.as_str(), *mode, content.as_slice()))
        .collect();
    assert_eq!(
        short,
        [
            ("init", 0o100_755, b"#!/bin/sh\n".as_slice()),
            ("lib", 0o040_755, b""),
            ("lib/modules", 0o040_755, b""),
            ("lib/modules/a.ko", 0o100_644, b"a"),
            ("lib/modules/b.ko", 0o100_644, b""),
            ("bin", 0o040_755, b""),
            ("bin/sh", 0o120_777, b"busybox"),
        ]
    );
}

#[test]
fn the_same_calls_give_the_same_bytes() {
    let build = || {
        let place = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            fs::write(place.path().join(name), name).unwrap();
        }
        let mut archive = Initramfs::new();
        archive.copy("tree", place.path()).unwrap();
        archive.finish().unwrap()
    };
    let first = build();
    assert_eq!(first, build());
    assert_eq!(first.len() % 4, 0, "another archive can follow");
}

#[test]
fn gzip_holds_the_same_archive() {
    let build = || {
        let mut archive = Initramfs::new();
        archive.file("init", 0o755, &[7; 10_000]).unwrap();
        archive
    };
    let packed = build().finish_gzip().unwrap();
    assert!(packed.len() < 5_000);
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut plain)
        .unwrap();
    assert_eq!(plain, build().finish().unwrap());
}

#[test]
fn paths_that_lead_out_or_end_the_archive_are_refused() {
    let mut archive = Initramfs::new();
    for path in ["", "/", ".", "..", "a/../b", "a\0b", "TRAILER!!!"] {
        assert!(archive.file(path, 0o644, b"").is_err(), "{path:?}");
        assert!(archive.directory(path).is_err(), "{path:?}");
        assert!(archive.symlink(path, "x").is_err(), "{path:?}");
    }
    assert!(entries(&archive.finish().unwrap()).is_empty());
}

#[test]
fn files_go_where_they_are_wanted() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("tool");
    let data = place.path().join("data:1.json");
    fs::write(&program, "p").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&data, "d").unwrap();
    let mut archive = Initramfs::new();
    for text in [
        program.display().to_string(),
        data.display().to_string(),
        format!("{}:/etc/renamed", data.display()),
        format!("{}:/tree", place.path().display()),
    ] {
        let file: FileArgument = text.parse().unwrap();
        file.add_to(&mut archive).unwrap();
    }
    let found: BTreeMap<String, u32> = entries(&archive.finish().unwrap())
        .into_iter()
        .map(|(name, mode, _)| (name, mode & 0o170_111))
        .collect();
    for (path, mode) in [
        ("bin/tool", 0o100_111),
        ("data:1.json", 0o100_000),
        ("etc/renamed", 0o100_000),
        ("tree/tool", 0o100_111),
    ] {
        assert_eq!(found.get(path), Some(&mode), "{path}");
    }
}

#[test]
fn file_arguments_that_name_nothing_are_refused() {
    for text in ["", ":/dest", "source:/", "source:/../x"] {
        assert!(text.parse::<FileArgument>().is_err(), "{text:?}");
    }
    let missing: FileArgument = "/nowhere/at/all".parse().unwrap();
    let error = missing.add_to(&mut Initramfs::new()).unwrap_err();
    assert!(
        format!("{error:#}").contains("/nowhere/at/all"),
        "{error:#}"
    );
}

proptest! {
    #[test]
    fn what_is_put_in_comes_out(
        files in prop::collection::btree_map(
            "[a-z]{1,8}(/[a-z.]{1,8}x){0,3}",
            (0u32..0o1000, prop::collection::vec(any::<u8>(), 0..40)),
            0..12,
        ),
    ) {
        let mut archive = Initramfs::new();
        for (path, (mode, content)) in &files {
            archive.file(path, *mode, content).unwrap();
        }
        let found: Vec<_> = entries(&archive.finish().unwrap())
            .into_iter()
            .filter(|(_, mode, _)| mode & 0o170_000 == 0o100_000)
            .map(|(name, mode, content)| (name, (mode & 0o7777, content)))
            .collect();
        let wanted: Vec<_> = files
            .into_iter()
            .map(|(path, value)| (clean(&path).unwrap(), value))
            .collect();
        prop_assert_eq!(found, wanted);
    }
}
