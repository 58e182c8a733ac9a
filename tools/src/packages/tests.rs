use std::fs;

use super::*;

/// A bzImage's boot header with this text as its `kernel_version`.
fn bzimage(version: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 0x400];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
    image[0x300..0x300 + version.len()].copy_from_slice(version);
    image
}

#[test]
fn a_kernels_release_is_read_from_its_image() {
    let image = bzimage(b"6.1.0-57-cloud-amd64 (debian@example.org) #1 SMP\0");
    assert_eq!(
        kernel_release(&image).as_deref(),
        Some("6.1.0-57-cloud-amd64")
    );
    let elf = b"\x7fELF...\0Linux version 6.12.1+deb12 (gcc)\0";
    assert_eq!(kernel_release(elf).as_deref(), Some("6.12.1+deb12"));
}

#[test]
fn an_image_without_a_usable_release_has_none() {
    let mut pointing_out = bzimage(b"6.1 ");
    pointing_out[0x20e..0x210].copy_from_slice(&0xffffu16.to_le_bytes());
    let cut = &bzimage(b"6.1 ")[..0x20f];
    for image in [
        b"".as_slice(),
        cut,
        &pointing_out,
        &bzimage(b"../../etc #1"),
        &bzimage(b" #1"),
        &bzimage(&[b'6'; 0x100]),
    ] {
        assert_eq!(kernel_release(image), None);
    }
}

#[test]
fn a_kernel_of_ones_own_brings_its_modules() {
    let place = tempfile::tempdir().unwrap();
    let kernel = place.path().join("bzImage");
    fs::write(&kernel, bzimage(b"6.1.2-own #1\0")).unwrap();
    let found = KernelPackage::from_files(&kernel, Some(place.path())).unwrap();
    assert_eq!(found.version, "6.1.2-own");
    assert_eq!(found.modules_dir.as_deref(), Some(place.path()));
    let without = KernelPackage::from_files(&kernel, None).unwrap();
    let error = without.modules(&["kvm"]).unwrap_err().to_string();
    assert!(error.contains("--modules-dir"), "{error}");
    assert!(without.modules(&[""; 0]).unwrap().is_empty());
    assert!(KernelPackage::from_files(&kernel, Some(&kernel)).is_err());
    assert!(KernelPackage::from_files(&place.path().join("none"), None).is_err());
}

/// A cache that has the kernel of the metapackage `linux-image-test`, which
/// no suite has: only the cache can give it.
fn filled_cache(root: &Path) -> Cache {
    let cache = Cache::at(root).unwrap();
    let packages = cache.directory(PACKAGES).unwrap();
    let name = "linux-image-9.9.9-test_9.9.9-1";
    let tree = packages.join(name);
    fs::create_dir_all(tree.join("boot")).unwrap();
    fs::create_dir_all(tree.join("usr/lib/modules/9.9.9-test")).unwrap();
    fs::write(tree.join("boot/config-9.9.9-test"), "").unwrap();
    fs::write(tree.join("boot/vmlinuz-9.9.9-test"), "kernel").unwrap();
    write_whole(
        &packages,
        &packages.join("linux-image-test.resolved"),
        name.as_bytes(),
    )
    .unwrap();
    cache
}

#[test]
fn a_cached_kernel_needs_no_package_tools() {
    let root = tempfile::tempdir().unwrap();
    let cache = filled_cache(root.path());
    let asked = std::cell::Cell::new(0);
    let kernel = KernelPackage::fetch(&cache, "linux-image-test", false, &|_| {
        asked.set(asked.get() + 1);
    })
    .unwrap();
    assert_eq!(asked.get(), 0, "something was fetched");
    assert_eq!(kernel.version, "9.9.9-test");
    assert_eq!(kernel.package.as_deref(), Some("linux-image-9.9.9-test"));
    assert_eq!(kernel.package_version.as_deref(), Some("9.9.9-1"));
    assert_eq!(fs::read_to_string(&kernel.vmlinuz).unwrap(), "kernel");
    assert!(
        kernel
            .modules_dir
            .unwrap()
            .ends_with("usr/lib/modules/9.9.9-test")
    );
}

#[test]
fn names_that_are_no_package_names_are_refused_before_apt_is_asked() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::at(root.path()).unwrap();
    for name in ["", "../x", "a b", "-o=x/y", "a/bookworm"] {
        let error = KernelPackage::fetch(&cache, name, false, &|_| {}).unwrap_err();
        assert!(
            error.to_string().contains("no name of a Debian package"),
            "{error:#}"
        );
    }
}

#[test]
fn a_static_program_is_told_from_a_dynamic_one() {
    // Program header of type PT_INTERP (3) or PT_LOAD (1).
    let program = |kind: u8| {
        let mut file = vec![0; 64 + 56];
        file[..4].copy_from_slice(b"\x7fELF");
        file[0x20] = 64;
        file[0x38] = 1;
        file[64] = kind;
        let mut path = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut path, &file).unwrap();
        path
    };
    assert!(!is_static(program(3).path()).unwrap());
    assert!(is_static(program(1).path()).unwrap());
}

#[test]
fn the_cache_lock_keeps_others_out() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::at(root.path()).unwrap();
    let held = cache.lock("packages").unwrap();
    let second = fs::File::options()
        .write(true)
        .open(root.path().join("packages.lock"))
        .unwrap();
    assert!(second.try_lock().is_err());
    drop(held);
    assert!(second.try_lock().is_ok());
}
