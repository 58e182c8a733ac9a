use std::fs;
use std::io::Write;
use std::path::Path;

use super::{ModuleTree, module_name};
use crate::packages::testing::module;

fn add(root: &Path, path: &str, depends: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let content = module(&format!("depends={depends}\0"));
    let content = if path.extension().is_some_and(|end| end == "gz") {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&content).unwrap();
        encoder.finish().unwrap()
    } else {
        content
    };
    fs::write(path, content).unwrap();
}

fn order(root: &Path, wanted: &[&str]) -> anyhow::Result<Vec<String>> {
    let modules = ModuleTree::open(root)?.load_order(wanted)?;
    Ok(modules.into_iter().map(|module| module.name).collect())
}

#[test]
fn each_module_comes_after_what_it_needs() {
    let root = tempfile::tempdir().unwrap();
    add(
        root.path(),
        "kernel/arch/kvm/kvm-amd.ko",
        "kvm,ccp,irqbypass",
    );
    add(root.path(), "kernel/arch/kvm/kvm.ko", "irqbypass");
    add(root.path(), "kernel/virt/irqbypass.ko", "");
    add(root.path(), "kernel/drivers/ccp.ko", "");
    assert_eq!(
        order(root.path(), &["kvm-amd"]).unwrap(),
        ["irqbypass", "kvm", "ccp", "kvm_amd"]
    );
    assert_eq!(
        order(root.path(), &["ccp", "kvm_amd", "ccp"]).unwrap(),
        ["ccp", "irqbypass", "kvm", "kvm_amd"]
    );
}

#[test]
fn what_is_built_in_is_left_out() {
    let root = tempfile::tempdir().unwrap();
    add(
        root.path(),
        "kernel/drivers/virtio/virtio_mem.ko",
        "virtio,virtio_ring",
    );
    let list = "kernel/drivers/virtio/virtio.ko\nkernel/drivers/virtio/virtio-ring.ko\n";
    fs::write(root.path().join("modules.builtin"), list).unwrap();
    assert_eq!(
        order(root.path(), &["virtio", "virtio_mem"]).unwrap(),
        ["virtio_mem"]
    );
}

#[test]
fn compressed_modules_come_out_as_objects() {
    let root = tempfile::tempdir().unwrap();
    add(root.path(), "kernel/virtio-mem.ko.gz", "");
    let tree = ModuleTree::open(root.path()).unwrap();
    let modules = tree.load_order(&["virtio_mem"]).unwrap();
    assert_eq!(modules[0].file_name, "virtio_mem.ko");
    assert!(modules[0].data.starts_with(b"\x7fELF"));
}

#[test]
fn missing_damaged_and_circular_modules_are_named() {
    let root = tempfile::tempdir().unwrap();
    add(root.path(), "kernel/a.ko", "b");
    add(root.path(), "kernel/b.ko", "a");
    add(root.path(), "kernel/c.ko", "gone");
    fs::write(root.path().join("kernel/d.ko"), "no module").unwrap();
    for (wanted, names) in [
        ("a", "itself"),
        ("c", "gone"),
        ("d", "module d is unusable"),
    ] {
        let error = order(root.path(), &[wanted]).unwrap_err();
        assert!(format!("{error:#}").contains(names), "{error:#}");
    }
}

#[test]
fn links_out_of_the_tree_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    add(other.path(), "stray.ko", "");
    add(root.path(), "kernel/own.ko", "");
    std::os::unix::fs::symlink(other.path(), root.path().join("build")).unwrap();
    assert!(order(root.path(), &["stray"]).is_err());
    assert_eq!(order(root.path(), &["own"]).unwrap(), ["own"]);
}

#[test]
fn file_names_lead_to_module_names() {
    assert_eq!(
        module_name("a/virtio-mem.ko.xz").as_deref(),
        Some("virtio_mem")
    );
    assert_eq!(module_name("kvm.ko").as_deref(), Some("kvm"));
    assert_eq!(module_name("modules.order"), None);
    assert_eq!(module_name("kvm.kobject"), None);
}
