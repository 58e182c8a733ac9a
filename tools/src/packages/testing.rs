//! Kernel modules for tests.

/// The least ELF object that has a `.modinfo` section with this content.
pub(crate) fn module(modinfo: &str) -> Vec<u8> {
    const HEADER: usize = 64;
    let names = b"\0.modinfo\0.shstrtab\0";
    let names_at = HEADER + modinfo.len();
    let table_at = names_at + names.len();
    let mut file = vec![0; HEADER];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[0x28..0x30].copy_from_slice(&(table_at as u64).to_le_bytes());
    file[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
    file[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
    file[0x3e..0x40].copy_from_slice(&2u16.to_le_bytes());
    file.extend_from_slice(modinfo.as_bytes());
    file.extend_from_slice(names);
    for (name, at, length) in [
        (0u32, 0, 0),
        (1, HEADER, modinfo.len()),
        (10, names_at, names.len()),
    ] {
        let mut section = [0; 64];
        section[..4].copy_from_slice(&name.to_le_bytes());
        section[0x18..0x20].copy_from_slice(&(at as u64).to_le_bytes());
        section[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
        file.extend_from_slice(&section);
    }
    file
}
