//! The kernel in a bzImage, for VMMs that take it unpacked only: an ELF file,
//! compressed, at the place that the setup header names
//! (Documentation/arch/x86/boot.rst, `payload_offset`, `payload_length`).

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{Cache, KernelPackage, compression, write_whole};

/// More than any kernel unpacks to, bytes.
const LIMIT_BYTES: usize = 1 << 30;
const ELF: [u8; 4] = *b"\x7fELF";
/// Head of an LZ4 frame in its legacy form, which kernels use.
const LZ4_LEGACY: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Its blocks unpack to this many bytes each, the last one to fewer.
const LZ4_BLOCK_BYTES: usize = 8 << 20;

impl KernelPackage {
    /// The unpacked kernel: the file itself if it is one, else one in the cache.
    ///
    /// # Errors
    /// When the file cannot be read or unpacked, or the cache not written.
    pub fn vmlinux(&self, cache: &Cache) -> Result<PathBuf> {
        let image = fs::read(&self.vmlinuz)
            .with_context(|| format!("cannot read the kernel {}", self.vmlinuz.display()))?;
        if image.starts_with(&ELF) {
            return Ok(self.vmlinuz.clone());
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&image);
        let directory = cache.directory("vmlinux")?;
        let path = directory.join(format!("{}-{:016x}", self.version, hasher.finish()));
        if !path.is_file() {
            let elf = unpack(&image)
                .with_context(|| format!("cannot unpack the kernel {}", self.vmlinuz.display()))?;
            write_whole(&directory, &path, &elf)?;
        }
        Ok(path)
    }
}

fn unpack(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image).context("it is no bzImage of boot protocol 2.08 or newer")?;
    let elf = match payload {
        [0x02, 0x21, 0x4c, 0x18, ..] => unpack_lz4(payload)?,
        [0x1f, 0x8b, ..] => read_all("kernel.gz", payload)?,
        // The unpacked size stands behind these, and is no part of them.
        [0xfd, b'7', b'z', ..] => read_all("kernel.xz", without_size(payload))?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => read_all("kernel.zst", without_size(payload))?,
        _ => payload.to_vec(),
    };
    if !elf.starts_with(&ELF) {
        bail!("it is packed in a form other than gzip, LZ4, xz and zstd");
    }
    Ok(elf)
}

/// The compressed kernel.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let bytes = |at: usize| Some(*image.get(at..)?.first_chunk::<4>()?);
    let number = |at| usize::try_from(u32::from_le_bytes(bytes(at)?)).ok();
    let protocol = u16::from_le_bytes([*image.get(0x206)?, *image.get(0x207)?]);
    if bytes(0x202)? != *b"HdrS" || protocol < 0x0208 {
        return None;
    }
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        count => usize::from(count),
    };
    let start = number(0x248)?.checked_add((sectors + 1) * 512)?;
    image.get(start..start.checked_add(number(0x24c)?)?)
}

fn without_size(payload: &[u8]) -> &[u8] {
    payload
        .split_last_chunk::<4>()
        .map_or(payload, |(rest, _)| rest)
}

fn read_all(name: &str, payload: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let limit = u64::try_from(LIMIT_BYTES).unwrap_or(u64::MAX);
    let mut reader = compression::decoder(name, payload)?.take(limit);
    reader.read_to_end(&mut out).context("it is damaged")?;
    Ok(out)
}

/// Blocks with their length before them, up to the unpacked size at the end.
fn unpack_lz4(payload: &[u8]) -> Result<Vec<u8>> {
    let cut = "its LZ4 data are cut short";
    let (frame, size) = payload.split_last_chunk::<4>().context(cut)?;
    let size = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
    if size > LIMIT_BYTES {
        bail!("it says that it unpacks to {size} bytes");
    }
    let mut out = Vec::with_capacity(size);
    let mut rest = frame;
    while out.len() < size {
        let (head, tail) = rest.split_first_chunk::<4>().context(cut)?;
        if *head == LZ4_LEGACY {
            rest = tail;
            continue;
        }
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        let (block, tail) = tail.split_at_checked(length).context(cut)?;
        let most = LZ4_BLOCK_BYTES.min(size - out.len());
        let unpacked = lz4_flex::block::decompress(block, most).context("it is damaged")?;
        if unpacked.is_empty() {
            bail!(cut);
        }
        out.extend(unpacked);
        rest = tail;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// As much of a bzImage as is read here.
    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x207] = 2;
        image[0x206] = 15;
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    /// Longer than one block of LZ4.
    fn kernel() -> Vec<u8> {
        let mut elf = ELF.to_vec();
        elf.extend((0..LZ4_BLOCK_BYTES + 5000).map(|n| u8::try_from(n % 251).unwrap()));
        elf
    }

    fn lz4(elf: &[u8]) -> Vec<u8> {
        let mut frame = LZ4_LEGACY.to_vec();
        for block in elf.chunks(LZ4_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(block);
            frame.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
            frame.extend(block);
        }
        frame.extend(u32::try_from(elf.len()).unwrap().to_le_bytes());
        frame
    }

    fn package(image: &[u8], directory: &tempfile::TempDir) -> KernelPackage {
        let file = directory.path().join("vmlinuz");
        fs::write(&file, image).unwrap();
        KernelPackage::from_files(&file, None).unwrap()
    }

    #[test]
    fn a_packed_kernel_is_unpacked_once_into_the_cache() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("cache")).unwrap();
        let package = package(&bzimage(&lz4(&kernel())), &directory);
        let path = package.vmlinux(&cache).unwrap();
        assert_eq!(fs::read(&path).unwrap(), kernel());
        let made = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(package.vmlinux(&cache).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), made);
    }

    #[test]
    fn an_unpacked_kernel_is_taken_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let package = package(&kernel(), &directory);
        assert_eq!(package.vmlinux(&cache).unwrap(), package.vmlinuz);
    }

    #[test]
    fn gzip_is_unpacked_and_what_is_no_kernel_is_refused() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&kernel()).unwrap();
        assert_eq!(
            unpack(&bzimage(&encoder.finish().unwrap())).unwrap(),
            kernel()
        );
        assert!(unpack(b"").is_err());
        assert!(unpack(&bzimage(b"BZh9")).is_err());
        let mut short = bzimage(&lz4(&kernel()));
        short.truncate(2000);
        assert!(unpack(&short).is_err());
        let mut large = lz4(&kernel());
        let end = large.len() - 4;
        large[end..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(unpack(&bzimage(&large)).is_err());
    }

    proptest! {
        #[test]
        fn damaged_frames_are_errors_or_kernels(
            at in 0_usize..5000, byte in any::<u8>(),
        ) {
            let mut frame = lz4(&[&ELF[..], &[7; 4000]].concat());
            let at = at % frame.len();
            frame[at] = byte;
            if let Ok(elf) = unpack(&bzimage(&frame)) {
                prop_assert!(elf.starts_with(&ELF));
            }
        }
    }
}
