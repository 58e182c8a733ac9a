use super::{Candidate, parse_show};

#[test]
fn the_first_of_each_group_is_a_dependency() {
    let text = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-3\nArchitecture: amd64\n\
                Depends: linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3), kmod:any, \
                initramfs-tools (>= 0.120) | linux-initramfs-tool\nSize: 1496\n\
                Description-en: meta\n Depends: nothing, this is text\n";
    assert_eq!(
        parse_show(text),
        Some(Candidate {
            package: "linux-image-cloud-amd64".into(),
            version: "6.1.192-3".into(),
            size_bytes: 1496,
            depends: vec![
                "linux-image-6.1.0-57-cloud-amd64".into(),
                "kmod".into(),
                "initramfs-tools".into(),
            ],
        })
    );
}

#[test]
fn only_the_first_paragraph_counts() {
    let text = "Package: a\nVersion: 2\n\nPackage: a\nVersion: 1\nDepends: b\n";
    let candidate = parse_show(text).unwrap();
    assert_eq!(candidate.version, "2");
    assert!(candidate.depends.is_empty());
}

#[test]
fn text_without_a_package_is_none() {
    for text in [
        "",
        "\n\n",
        "Package: a\n",
        "N: Unable to locate package a\n",
    ] {
        assert_eq!(parse_show(text), None, "{text:?}");
    }
}
