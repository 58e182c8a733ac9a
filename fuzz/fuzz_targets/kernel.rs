//! Kernel files: any bytes are refused with a reason that names the file, or
//! end up in guest memory with an entry. Unpacking is bounded (the `fuzzing`
//! feature lowers the bound, so that it is met).
//!
//! The first byte chooses the entry.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lmb_memory::{
    BackingOptions, Bytes, GuestBlock, Hotplug, Layout, LmbSize, MemoryRequest, PageSize,
};
use lmb_vmm::boot::image::{EntryChoice, KernelImage};
use lmb_vmm::boot::load::load;
use lmb_vmm::protocol::EntryKind;

/// Largest image, as the feature has it.
const MAX_IMAGE_BYTES: u64 = 16 << 20;
const MEMORY_BYTES: u64 = 32 << 20;

static LAYOUT: LazyLock<Layout> = LazyLock::new(|| {
    Layout::compute(&MemoryRequest {
        memory: Bytes::new(MEMORY_BYTES),
        max_memory: None,
        lmb_size: LmbSize::new(Bytes::new(2 << 20)).expect("2 MiB is an LMB size"),
        guest_block: GuestBlock::Follow,
        slot_size: None,
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 40,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 509,
    })
    .expect("a legal layout")
});

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("lmb-fuzz-kernel-{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    let choice = match choice % 3 {
        0 => EntryChoice::Auto,
        1 => EntryChoice::Elf,
        _ => EntryChoice::Bzimage,
    };
    std::fs::write(&*FILE, bytes).expect("a file");
    let image = KernelImage::open(&FILE, choice);
    // An open file stays; whatever ends this process leaves none behind.
    std::fs::remove_file(&*FILE).expect("the file goes");
    let image = match image {
        Ok(image) => image,
        Err(error) => {
            let name = FILE.to_string_lossy();
            assert!(error.to_string().contains(&*name), "{error}");
            return;
        }
    };
    assert!(image.size_bytes() <= MAX_IMAGE_BYTES);
    assert_eq!(
        image.entry == EntryKind::Bzimage,
        choice == EntryChoice::Bzimage
    );
    let memory = lmb_memory::create(&LAYOUT, &BackingOptions::default()).expect("memory");
    match load(&memory.guest, &LAYOUT, None, &image, None, "quiet") {
        Ok(entry) => {
            assert_eq!(entry.kind, image.entry);
            if entry.kind == EntryKind::Bzimage {
                assert!(entry.address < MEMORY_BYTES);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
