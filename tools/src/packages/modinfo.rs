//! The `.modinfo` section of a kernel module: NUL-terminated `key=value`
//! strings in a 64-bit little-endian ELF object (include/linux/moduleinfo.h
//! of the kernel).

use std::ops::Range;

use thiserror::Error;

/// Why a module's `.modinfo` could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ModinfoError {
    /// The bytes do not begin as a 64-bit little-endian ELF object.
    #[error("not a 64-bit little-endian ELF object")]
    NotElf,
    /// A header points past the end of the file.
    #[error("cut short: its {what} reaches past the end")]
    Truncated {
        /// Which part reaches past the end.
        what: &'static str,
    },
    /// There is no section of that name.
    #[error("without a .modinfo section, so no kernel module")]
    NoModinfo,
}

/// Offsets of the 64-bit ELF header and section header (elf(5)).
const E_SHOFF: usize = 0x28;
const E_SHENTSIZE: usize = 0x3a;
const E_SHNUM: usize = 0x3c;
const E_SHSTRNDX: usize = 0x3e;
const SH_NAME: usize = 0x00;
const SH_OFFSET: usize = 0x18;
const SH_SIZE: usize = 0x20;

/// The names in the module's `depends=` entries, in their order, with `-`
/// written as `_`.
///
/// # Errors
/// When the bytes are no kernel module or are cut short.
pub fn depends(module: &[u8]) -> Result<Vec<String>, ModinfoError> {
    let section = modinfo_section(module)?;
    Ok(section
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|byte| *byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| normalize(&String::from_utf8_lossy(name)))
        .collect())
}

/// A module's name as the kernel writes it: `_` for every `-`.
#[must_use]
pub fn normalize(name: &str) -> String {
    name.replace('-', "_")
}

fn modinfo_section(file: &[u8]) -> Result<&[u8], ModinfoError> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(ModinfoError::NotElf);
    }
    let header = "ELF header";
    let table = integer::<8>(file, E_SHOFF, header)?;
    let entry_size = integer::<2>(file, E_SHENTSIZE, header)?;
    let count = integer::<2>(file, E_SHNUM, header)?;
    let names_index = integer::<2>(file, E_SHSTRNDX, header)?;

    let section = |index: usize| -> Result<usize, ModinfoError> {
        index
            .checked_mul(entry_size)
            .and_then(|offset| offset.checked_add(table))
            .ok_or(ModinfoError::Truncated {
                what: "section table",
            })
    };
    let table_end = section(count)?;
    slice(file, 0, table_end, "section table")?;
    let names = contents(file, section(names_index)?)?;
    for index in 0..count {
        let at = section(index)?;
        let name_at = integer::<4>(file, at.saturating_add(SH_NAME), "section table")?;
        let name = names.get(name_at..).unwrap_or_default();
        if name.starts_with(b".modinfo\0") {
            return contents(file, at);
        }
    }
    Err(ModinfoError::NoModinfo)
}

fn contents(file: &[u8], section: usize) -> Result<&[u8], ModinfoError> {
    let what = "section table";
    let start = integer::<8>(file, section.saturating_add(SH_OFFSET), what)?;
    let length = integer::<8>(file, section.saturating_add(SH_SIZE), what)?;
    slice(file, start, length, "section")
}

fn slice<'a>(
    file: &'a [u8],
    start: usize,
    length: usize,
    what: &'static str,
) -> Result<&'a [u8], ModinfoError> {
    start
        .checked_add(length)
        .and_then(|end| file.get(Range { start, end }))
        .ok_or(ModinfoError::Truncated { what })
}

fn integer<const N: usize>(
    file: &[u8],
    at: usize,
    what: &'static str,
) -> Result<usize, ModinfoError> {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(slice(file, at, N, what)?) {
        *to = *from;
    }
    usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| ModinfoError::Truncated { what })
}

#[cfg(test)]
#[path = "modinfo_tests.rs"]
mod tests;
