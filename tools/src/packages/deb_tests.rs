use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::unpack;

/// `tar` of one file `lib/a` holding `hi`, as xz(1) writes it.
const TAR_XZ: &str = "fd377a585a000004e6d6b446020021011c00000010cf58cce027ff00605d00361a48664e26ed2270\
     ac5cd53c2388d8d9599550d69a27cd831162362a2ffe0b9ae3b703685dfcec6345b440abb0c41bfe\
     8938ee9491c98f4ced35a544a7bfdf25ea31c9e9251f12577ccfbf2dbeef25dda1adf90cb4743723\
     6e315c7f7b7b000040583af8802d464f00017c805000000057a65ec5b1c467fb020000000004595a";

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn tarball(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // Written by hand: the builder refuses the paths that are of interest.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn package(data_name: &str, data: &[u8]) -> Vec<u8> {
    let mut builder = ar::Builder::new(Vec::new());
    for (name, content) in [
        ("debian-binary", b"2.0\n".as_slice()),
        ("control.tar", b""),
        (data_name, data),
    ] {
        let header = ar::Header::new(name.as_bytes().to_vec(), content.len() as u64);
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zstd(data: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
}

fn all(_: &Path) -> bool {
    true
}

#[test]
fn every_compression_debian_uses_is_unpacked() {
    let tar = tarball(&[("./lib/a", "hi")]);
    for (name, data) in [
        ("data.tar", tar.clone()),
        ("data.tar.gz", gzip(&tar)),
        ("data.tar.zst", zstd(&tar)),
        ("data.tar.xz", unhex(TAR_XZ)),
    ] {
        let dest = tempfile::tempdir().unwrap();
        let count = unpack(&package(name, &data)[..], dest.path(), &all).unwrap();
        assert_eq!(count, 1, "{name}");
        let content = fs::read_to_string(dest.path().join("lib/a")).unwrap();
        assert_eq!(content, "hi", "{name}");
    }
}

#[test]
fn only_what_is_wanted_is_unpacked() {
    let tar = tarball(&[("./boot/vmlinuz-1", "k"), ("./usr/share/doc/x", "d")]);
    let dest = tempfile::tempdir().unwrap();
    let deb = package("data.tar", &tar);
    let count = unpack(&deb[..], dest.path(), &|path| path.starts_with("boot")).unwrap();
    assert_eq!(count, 1);
    assert!(dest.path().join("boot/vmlinuz-1").is_file());
    assert!(!dest.path().join("usr").exists());
}

#[test]
fn paths_out_of_the_destination_are_refused() {
    let outer = tempfile::tempdir().unwrap();
    let dest = outer.path().join("inner");
    fs::create_dir(&dest).unwrap();
    let deb = package("data.tar", &tarball(&[("../escaped", "x")]));
    let error = unpack(&deb[..], &dest, &all).unwrap_err();
    assert!(format!("{error:#}").contains("leads out"), "{error:#}");
    assert!(!outer.path().join("escaped").exists());
}

#[test]
fn what_is_no_package_is_refused() {
    let dest = tempfile::tempdir().unwrap();
    let other = package("other.tar", b"");
    for bytes in [b"".as_slice(), b"!<arch>\n", b"PK\x03\x04zip", &other] {
        assert!(unpack(bytes, dest.path(), &all).is_err());
    }
}

#[test]
fn a_package_that_is_cut_short_is_refused_at_any_length() {
    let tar = tarball(&[("./a", "first"), ("./b", "second")]);
    for (name, data) in [
        ("data.tar", tar.clone()),
        ("data.tar.gz", gzip(&tar)),
        ("data.tar.zst", zstd(&tar)),
        ("data.tar.xz", unhex(TAR_XZ)),
    ] {
        let deb = package(name, &data);
        // The last byte may be ar's padding to an even length.
        for length in 0..deb.len() - 1 {
            let dest = tempfile::tempdir().unwrap();
            let outcome = unpack(&deb[..length], dest.path(), &all);
            assert!(outcome.is_err(), "{name} cut to {length} of {}", deb.len());
        }
    }
}

proptest! {
    #[test]
    fn damaged_packages_never_panic(
        at in 0usize..600, value: u8, which in 0usize..4,
    ) {
        let tar = tarball(&[("./a", "first")]);
        let mut deb = match which {
            0 => package("data.tar", &tar),
            1 => package("data.tar.gz", &gzip(&tar)),
            2 => package("data.tar.zst", &zstd(&tar)),
            _ => package("data.tar.xz", &unhex(TAR_XZ)),
        };
        let at = at % deb.len();
        deb[at] = value;
        let dest = tempfile::tempdir().unwrap();
        let kept = |path: &Path| path.starts_with("a");
        if let Ok(count) = unpack(&deb[..], dest.path(), &kept) {
            prop_assert!(count <= 1);
        }
    }
}
