//! Kernel files: what they are, what they hold, and unpacking them on the host.
//!
//! A bzImage carries its kernel as a compressed ELF image; its setup header
//! says where (Documentation/arch/x86/boot.rst, `payload_offset`,
//! `payload_length`). Unpacking it here and entering at the ELF's PVH note
//! saves the guest its decompressor, and with it KASLR.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use crate::protocol::EntryKind;

/// Largest kernel file read and largest kernel unpacked, bytes. Debian's
/// kernels have 8 to 60 MB; the bound keeps a hostile length from taking the
/// host's memory.
const MAX_IMAGE_BYTES: u64 = if cfg!(feature = "fuzzing") {
    16 << 20
} else {
    1 << 30
};
/// Offset of the setup header's first field, `setup_sects`.
const SETUP_SECTS: usize = 0x1f1;
/// Last byte of the setup header that is read here, exclusive.
const HEADER_END: usize = 0x268;
/// LZ4 legacy frame magic, as the kernel's build writes it.
const LZ4_LEGACY_MAGIC: u32 = 0x184c_2102;
/// Uncompressed size of every block but the last in an LZ4 legacy frame.
const LZ4_LEGACY_BLOCK_BYTES: usize = 8 << 20;

/// Why a kernel file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be read.
    #[error("cannot read kernel {path}: {source}")]
    Read {
        /// Path as given.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is larger than any kernel.
    #[error("kernel {path} has more than {MAX_IMAGE_BYTES} bytes: this is no kernel")]
    TooBig {
        /// Path as given.
        path: PathBuf,
    },
    /// Neither ELF nor bzImage.
    #[error(
        "{path} is neither an ELF vmlinux nor a bzImage (boot protocol 2.08 or newer): give \
         /boot/vmlinuz-… or a vmlinux"
    )]
    Unknown {
        /// Path as given.
        path: PathBuf,
    },
    /// The entry asked for does not exist in this kind of file.
    #[error("{path} is an ELF kernel, which has no bzImage entry: use --kernel-entry elf")]
    NotBzimage {
        /// Path as given.
        path: PathBuf,
    },
    /// The bzImage has no 64-bit entry.
    #[error("{path} has no 64-bit entry (xloadflags {xloadflags:#x}): it is a 32-bit kernel")]
    No64BitEntry {
        /// Path as given.
        path: PathBuf,
        /// The header's field.
        xloadflags: u16,
    },
    /// The header contradicts the file.
    #[error("{path} is damaged: {what}; fetch it again")]
    Damaged {
        /// Path as given.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The compression is one that is not supported.
    #[error(
        "{path} is packed with {format}, which is not supported (gzip, lz4, xz and zstd are): use \
         --kernel-entry bzimage, which lets the guest unpack it"
    )]
    Compression {
        /// Path as given.
        path: PathBuf,
        /// The format's name.
        format: &'static str,
    },
}

/// Which entry the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EntryChoice {
    /// The ELF entry.
    #[default]
    Auto,
    /// The ELF entry, unpacking a bzImage for it.
    Elf,
    /// The bzImage's 64-bit entry.
    Bzimage,
}

/// A kernel file, opened once and read at each boot: what is written into it
/// takes effect at the next one.
#[derive(Debug)]
pub struct KernelFile {
    path: PathBuf,
    file: File,
}

impl KernelFile {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        Ok(Self {
            path: path.into(),
            file: File::open(path).map_err(|source| unreadable(path, source))?,
        })
    }

    /// Reads it and, for the ELF entry of a bzImage, unpacks it.
    ///
    /// # Errors
    /// Any of [`ImageError`]; nothing but the file is touched.
    pub fn read(&self, choice: EntryChoice) -> Result<KernelImage, ImageError> {
        let path = &self.path;
        let system = |source| unreadable(path, source);
        let mut file = self.file.try_clone().map_err(system)?;
        // The clone shares its place with the reader of the boot before.
        file.rewind().map_err(system)?;
        let size_bytes = file.metadata().map_err(system)?.len();
        if size_bytes > MAX_IMAGE_BYTES {
            return Err(ImageError::TooBig { path: path.into() });
        }
        KernelImage::read(path, file, size_bytes, choice)
    }
}

/// A kernel ready to be placed in guest memory.
#[derive(Debug)]
pub struct KernelImage {
    /// Path as given.
    pub path: PathBuf,
    /// Kernel version from the bzImage's header, its first word.
    pub version: Option<String>,
    /// How it is entered.
    pub entry: EntryKind,
    /// What is placed.
    pub content: Content,
}

/// Where a kernel's bytes are.
#[derive(Debug)]
pub enum Content {
    /// An ELF file, read straight into guest memory.
    ElfFile(File),
    /// An unpacked ELF image.
    Elf(Vec<u8>),
    /// A whole bzImage.
    Bzimage(Vec<u8>),
}

impl KernelImage {
    /// Reads a file once, see [`KernelFile::read`].
    ///
    /// # Errors
    /// Any of [`ImageError`].
    pub fn open(path: &Path, choice: EntryChoice) -> Result<Self, ImageError> {
        KernelFile::open(path)?.read(choice)
    }

    fn read(
        path: &Path,
        mut file: File,
        size_bytes: u64,
        choice: EntryChoice,
    ) -> Result<Self, ImageError> {
        if is_elf(path, &mut file)? {
            if choice == EntryChoice::Bzimage {
                return Err(ImageError::NotBzimage { path: path.into() });
            }
            return Ok(Self {
                path: path.into(),
                version: None,
                entry: EntryKind::Elf,
                content: Content::ElfFile(file),
            });
        }
        let bytes = read_bounded(path, file, size_bytes)?;
        let header = BzHeader::parse(path, &bytes)?;
        let version = header.version(&bytes);
        if choice == EntryChoice::Bzimage {
            // XLF_KERNEL_64: the image has the 64-bit entry at 0x200.
            if header.xloadflags & 1 == 0 {
                return Err(ImageError::No64BitEntry {
                    path: path.into(),
                    xloadflags: header.xloadflags,
                });
            }
            return Ok(Self {
                path: path.into(),
                version,
                entry: EntryKind::Bzimage,
                content: Content::Bzimage(bytes),
            });
        }
        let elf = unpack(path, header.payload(path, &bytes)?)?;
        if !elf.starts_with(b"\x7fELF") {
            return Err(damaged(path, "its payload is no ELF image"));
        }
        Ok(Self {
            path: path.into(),
            version,
            entry: EntryKind::Elf,
            content: Content::Elf(elf),
        })
    }

    /// The image itself, for who wants it outside a guest.
    ///
    /// # Errors
    /// When an ELF file cannot be read.
    pub fn into_bytes(self) -> std::io::Result<Vec<u8>> {
        match self.content {
            Content::Elf(bytes) | Content::Bzimage(bytes) => Ok(bytes),
            Content::ElfFile(mut file) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// Bytes of the image, unpacked if it is.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match &self.content {
            Content::ElfFile(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Content::Elf(bytes) | Content::Bzimage(bytes) => bytes.len() as u64,
        }
    }
}

fn damaged(path: &Path, what: impl Into<String>) -> ImageError {
    ImageError::Damaged {
        path: path.into(),
        what: what.into(),
    }
}

/// Looks at the magic and goes back to the start.
fn is_elf(path: &Path, file: &mut File) -> Result<bool, ImageError> {
    let mut magic = Vec::with_capacity(4);
    file.take(4)
        .read_to_end(&mut magic)
        .and_then(|_| file.rewind())
        .map_err(|source| unreadable(path, source))?;
    Ok(magic == *b"\x7fELF")
}

fn unreadable(path: &Path, source: std::io::Error) -> ImageError {
    ImageError::Read {
        path: path.into(),
        source,
    }
}

fn read_bounded(path: &Path, file: File, expected: u64) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    file.take(MAX_IMAGE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > MAX_IMAGE_BYTES {
        return Err(ImageError::TooBig { path: path.into() });
    }
    Ok(bytes)
}

/// The fields of a bzImage's setup header that are used before loading.
struct BzHeader {
    setup_bytes: usize,
    kernel_version: u16,
    xloadflags: u16,
    payload_offset: u32,
    payload_length: u32,
}

impl BzHeader {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ImageError> {
        let unknown = || ImageError::Unknown { path: path.into() };
        let header = bytes.get(..HEADER_END).ok_or_else(unknown)?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        // "HdrS" at 0x202; version 2.08 brought payload_offset.
        if u32_at(0x202) != 0x5372_6448 || u16_at(0x206) < 0x0208 {
            return Err(unknown());
        }
        let sectors = match header[SETUP_SECTS] {
            0 => 4,
            n => usize::from(n),
        };
        Ok(Self {
            setup_bytes: (sectors + 1) * 512,
            kernel_version: u16_at(0x20e),
            xloadflags: u16_at(0x236),
            payload_offset: u32_at(0x248),
            payload_length: u32_at(0x24c),
        })
    }

    /// First word of the version string the header points to.
    fn version(&self, bytes: &[u8]) -> Option<String> {
        let start = usize::from(self.kernel_version).checked_add(0x200)?;
        let text = bytes.get(start..self.setup_bytes.min(bytes.len()))?;
        let end = text.iter().position(|&b| b == 0 || b == b' ')?;
        let word = std::str::from_utf8(&text[..end]).ok()?;
        (self.kernel_version != 0 && !word.is_empty()).then(|| word.to_owned())
    }

    fn payload<'a>(&self, path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], ImageError> {
        let range = usize::try_from(self.payload_offset)
            .ok()
            .and_then(|offset| offset.checked_add(self.setup_bytes))
            .and_then(|start| Some((start, start.checked_add(self.payload_length as usize)?)));
        range
            .and_then(|(start, end)| bytes.get(start..end))
            .ok_or_else(|| damaged(path, "its payload lies outside the file"))
    }
}

/// Unpacks a kernel payload. Every format but gzip has the unpacked size, a
/// little-endian u32, appended by the kernel's build (scripts/Makefile.lib,
/// `size_append`).
fn unpack(path: &Path, payload: &[u8]) -> Result<Vec<u8>, ImageError> {
    match payload {
        [0x02, 0x21, 0x4c, 0x18, ..] => unpack_lz4(path, payload, appended_size(path, payload)?),
        [0x1f, 0x8b, ..] => read_all(path, flate2::read::GzDecoder::new(payload), 0),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let size = appended_size(path, payload)?;
            read_all(path, lzma_rust2::XzReader::new(payload, false), size)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            check_zstd_window(path, payload)?;
            let decoder = ruzstd::decoding::StreamingDecoder::new(payload)
                .map_err(|error| damaged(path, error.to_string()))?;
            read_all(path, decoder, appended_size(path, payload)?)
        }
        [b'B', b'Z', b'h', ..] => Err(compression(path, "bzip2")),
        [0x5d, 0, 0, ..] => Err(compression(path, "lzma")),
        [0x89, b'L', b'Z', b'O', ..] => Err(compression(path, "lzo")),
        [0x7f, b'E', b'L', b'F', ..] => Ok(payload.to_vec()),
        _ => Err(compression(path, "an unknown format")),
    }
}

/// The unpacked size behind a payload.
fn appended_size(path: &Path, payload: &[u8]) -> Result<usize, ImageError> {
    let size = payload
        .last_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if u64::from(size) > MAX_IMAGE_BYTES {
        return Err(damaged(path, format!("it unpacks to {size} bytes")));
    }
    Ok(size as usize)
}

/// Refuses a Zstandard frame whose window is larger than any kernel: its
/// decoder gives nothing out before it holds a window full, so the bound of
/// what it gives out would come too late.
fn check_zstd_window(path: &Path, frame: &[u8]) -> Result<(), ImageError> {
    match zstd_window_bytes(frame) {
        Some(bytes) if bytes <= MAX_IMAGE_BYTES => Ok(()),
        Some(bytes) => Err(damaged(path, format!("it has a window of {bytes} bytes"))),
        None => Err(damaged(path, "its Zstandard header is cut short")),
    }
}

/// The window of a Zstandard frame (RFC 8878, 3.1.1.1).
fn zstd_window_bytes(frame: &[u8]) -> Option<u64> {
    let descriptor = *frame.get(4)?;
    let rest = frame.get(5..)?;
    if descriptor & 0x20 == 0 {
        let window = *rest.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // A single segment: all of the content, whose size stands behind the number
    // of a dictionary.
    let start = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = 1 << (descriptor >> 6);
    let field = rest.get(start..start + length)?;
    let size = field
        .iter()
        .rev()
        .fold(0, |size, byte| (size << 8) | u64::from(*byte));
    Some(if length == 2 { size + 256 } else { size })
}

fn compression(path: &Path, format: &'static str) -> ImageError {
    ImageError::Compression {
        path: path.into(),
        format,
    }
}

fn read_all(path: &Path, reader: impl Read, capacity: usize) -> Result<Vec<u8>, ImageError> {
    let mut out = Vec::with_capacity(capacity);
    reader
        .take(MAX_IMAGE_BYTES + 1)
        .read_to_end(&mut out)
        .map_err(|error| damaged(path, format!("it does not unpack: {error}")))?;
    if out.len() as u64 > MAX_IMAGE_BYTES {
        return Err(damaged(
            path,
            format!("it unpacks to over {MAX_IMAGE_BYTES} bytes"),
        ));
    }
    Ok(out)
}

/// LZ4 legacy frame: magic, then blocks of a u32 length and data, each 8 MiB
/// unpacked but the last. The kernel's appended size ends it.
fn unpack_lz4(path: &Path, payload: &[u8], size: usize) -> Result<Vec<u8>, ImageError> {
    let truncated = || damaged(path, "its LZ4 payload is cut short");
    let mut out = vec![0_u8; size];
    let mut filled = 0;
    let mut rest = payload.get(4..).ok_or_else(truncated)?;
    while filled < size {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(truncated)?;
        let length = u32::from_le_bytes(*length);
        if length == LZ4_LEGACY_MAGIC {
            rest = tail;
            continue;
        }
        let block = tail.get(..length as usize).ok_or_else(truncated)?;
        rest = &tail[length as usize..];
        let end = filled.saturating_add(LZ4_LEGACY_BLOCK_BYTES).min(size);
        let written = lz4_flex::block::decompress_into(block, &mut out[filled..end])
            .map_err(|error| damaged(path, format!("it does not unpack: {error}")))?;
        if written == 0 {
            return Err(truncated());
        }
        filled += written;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// A bzImage as far as this module reads one.
    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0_u8; 1024];
        image[SETUP_SECTS] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x30d].copy_from_slice(b"6.1.0-test #1");
        image[0x236..0x238].copy_from_slice(&1_u16.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    fn elf_bytes() -> Vec<u8> {
        let mut elf = b"\x7fELF".to_vec();
        elf.extend((0..20_000_u32).flat_map(|n| (n / 7).to_le_bytes()));
        elf
    }

    fn open(bytes: &[u8], choice: EntryChoice) -> Result<KernelImage, ImageError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        KernelImage::open(file.path(), choice)
    }

    fn with_size(mut packed: Vec<u8>, size: usize) -> Vec<u8> {
        packed.extend_from_slice(&u32::try_from(size).unwrap().to_le_bytes());
        packed
    }

    fn lz4(elf: &[u8]) -> Vec<u8> {
        let mut packed = LZ4_LEGACY_MAGIC.to_le_bytes().to_vec();
        for block in elf.chunks(LZ4_LEGACY_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(block);
            packed.extend_from_slice(&u32::try_from(block.len()).unwrap().to_le_bytes());
            packed.extend_from_slice(&block);
        }
        with_size(packed, elf.len())
    }

    fn gzip(elf: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(elf).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn lz4_and_gzip_payloads_unpack_to_the_elf() {
        let elf = elf_bytes();
        for payload in [lz4(&elf), gzip(&elf), elf.clone()] {
            let image = open(&bzimage(&payload), EntryChoice::Auto).unwrap();
            assert_eq!(image.entry, EntryKind::Elf);
            assert_eq!(image.version.as_deref(), Some("6.1.0-test"));
            assert_eq!(image.into_bytes().unwrap(), elf);
        }
    }

    /// A Zstandard frame: what follows the magic, and a last block of `count`
    /// bytes from one.
    fn zstd(header: &[u8], count: u32) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
        frame.extend_from_slice(header);
        frame.extend_from_slice(&((count << 3) | 0b011).to_le_bytes()[..3]);
        frame.push(0x7f);
        frame
    }

    #[test]
    fn a_zstd_window_past_any_kernel_is_refused_before_it_is_filled() {
        let refused = |frame: Vec<u8>| {
            let error = open(&bzimage(&with_size(frame, 1000)), EntryChoice::Auto).unwrap_err();
            error.to_string()
        };
        // By its descriptor, and as the size of a single segment.
        for header in [&[0x00, 0xff][..], &[0xe0, 0, 0, 0, 0, 1, 0, 0, 0]] {
            let text = refused(zstd(header, 1000));
            assert!(text.contains("has a window of"), "{text}");
        }
        // Those of kernels are taken: 128 MiB (zstd --ultra -22), small ones, and
        // a size of each width.
        for header in [
            &[0x00, 17 << 3][..],
            &[0x00, 0x00],
            &[0x20, 200],
            &[0x60, 0, 4],
            &[0xa0, 0xe8, 3, 0, 0],
            &[0xe0, 0xe8, 3, 0, 0, 0, 0, 0, 0],
        ] {
            let text = refused(zstd(header, 200));
            assert!(text.contains("no ELF image"), "{header:x?}: {text}");
        }
        assert_eq!(zstd_window_bytes(&zstd(&[0x60, 0, 4], 0)), Some(1280));
        let text = refused(vec![0x28, 0xb5, 0x2f, 0xfd]);
        assert!(text.contains("damaged"), "{text}");
    }

    #[test]
    fn the_bzimage_entry_keeps_the_file_whole() {
        let file = bzimage(&lz4(&elf_bytes()));
        let image = open(&file, EntryChoice::Bzimage).unwrap();
        assert_eq!(image.entry, EntryKind::Bzimage);
        assert_eq!(image.into_bytes().unwrap(), file);
    }

    #[test]
    fn an_elf_file_is_taken_as_it_is_and_has_no_bzimage_entry() {
        let elf = elf_bytes();
        assert_eq!(
            open(&elf, EntryChoice::Elf).unwrap().into_bytes().unwrap(),
            elf
        );
        assert!(matches!(
            open(&elf, EntryChoice::Bzimage),
            Err(ImageError::NotBzimage { .. })
        ));
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_its_path() {
        let error = open(b"#!/bin/sh\n", EntryChoice::Auto).unwrap_err();
        assert!(error.to_string().contains("neither an ELF"), "{error}");
        assert!(matches!(
            KernelImage::open(Path::new("/nonexistent"), EntryChoice::Auto),
            Err(ImageError::Read { .. })
        ));
        let mut bzip2 = b"BZh91AY".to_vec();
        bzip2.resize(64, 0);
        assert!(matches!(
            open(&bzimage(&bzip2), EntryChoice::Auto),
            Err(ImageError::Compression {
                format: "bzip2",
                ..
            })
        ));
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_refused_or_unpacked_but_never_a_panic(
            cut in 0_usize..3000,
            flips in prop::collection::vec((0_usize..3000, any::<u8>()), 0..8),
            packed_with_lz4 in any::<bool>(),
        ) {
            let elf = elf_bytes();
            let payload = if packed_with_lz4 { lz4(&elf) } else { gzip(&elf) };
            let mut file = bzimage(&payload);
            file.truncate(file.len().saturating_sub(cut));
            for (at, value) in flips {
                if let Some(byte) = file.get_mut(at) {
                    *byte = value;
                }
            }
            if let Ok(image) = open(&file, EntryChoice::Elf) {
                prop_assert!(image.into_bytes().unwrap().starts_with(b"\x7fELF"));
            }
        }
    }
}
