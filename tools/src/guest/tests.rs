use std::fs;

use super::*;

#[test]
fn an_image_is_written_only_when_it_changed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image.cpio");
    assert!(write_if_changed(&path, b"one").unwrap());
    let first = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(!write_if_changed(&path, b"one").unwrap());
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first);
    assert!(write_if_changed(&path, b"two").unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"two");
    let missing = place.path().join("none").join("image.cpio");
    let error = write_if_changed(&missing, b"one").unwrap_err();
    assert!(format!("{error:#}").contains("image.cpio"), "{error:#}");
}

#[test]
fn old_images_go_and_the_newest_stays() {
    let place = tempfile::tempdir().unwrap();
    let start = std::time::SystemTime::UNIX_EPOCH;
    let image = |number: u64| {
        let path = place.path().join(format!("{number}.cpio"));
        let file = fs::File::create(&path).unwrap();
        file.set_modified(start + std::time::Duration::from_secs(number))
            .unwrap();
        path
    };
    let images: Vec<_> = (1..=12).map(image).collect();
    // The one that was just written counts as newest whatever its clock says.
    forget_old(place.path(), &images[0]);
    let left: Vec<bool> = images.iter().map(|path| path.exists()).collect();
    assert_eq!(left.iter().filter(|left| **left).count(), KEPT_IMAGES);
    assert!(left[0]);
    assert!(left[12 - KEPT_IMAGES + 1..].iter().all(|left| *left));
}

#[test]
fn modules_come_with_their_load_order() {
    use crate::packages::testing::module;
    let place = tempfile::tempdir().unwrap();
    for (name, depends) in [("virtio_mem", "virtio"), ("virtio", "")] {
        let content = module(&format!("depends={depends}\0"));
        fs::write(place.path().join(format!("{name}.ko")), content).unwrap();
    }
    let kernel = KernelPackage {
        package: None,
        package_version: None,
        version: "1".into(),
        vmlinuz: "/k".into(),
        modules_dir: Some(place.path().into()),
    };
    let mut archive = Initramfs::new();
    let names = add_modules(&mut archive, &kernel, &["virtio-mem"]).unwrap();
    assert_eq!(names, ["virtio", "virtio_mem"]);
    let bytes = archive.finish().unwrap();
    let order = b"virtio.ko\nvirtio_mem.ko\n";
    assert!(bytes.windows(order.len()).any(|window| window == order));
}
