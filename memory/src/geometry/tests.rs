use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::units::GuestAddr;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn size(text: &str) -> Bytes {
    text.parse().unwrap()
}

fn request(memory: &str, max: Option<&str>, lmb: &str) -> MemoryRequest {
    MemoryRequest {
        memory: size(memory),
        max_memory: max.map(size),
        lmb_size: lmb.parse().unwrap(),
        guest_block: GuestBlock::Follow,
        slot_size: None,
        page_size: PageSize::Small,
        hotplug: Hotplug::VirtioMem,
        phys_bits: 46,
        kernel_reach: None,
        max_map_count: None,
        max_slots: 32_764,
    }
}

fn pieces(layout: &Layout) -> Vec<(u64, u64)> {
    layout
        .boot
        .iter()
        .map(|piece| (piece.range.start().get(), piece.range.end()))
        .collect()
}

/// `probe_memory_block_size` of a KVM guest, loop and all.
fn linux_probe(ram_end: u64) -> u64 {
    if ram_end < 64 * GIB {
        return 128 * MIB;
    }
    let mut block = 2 * GIB;
    while block > 128 * MIB {
        if ram_end.is_multiple_of(block) {
            break;
        }
        block >>= 1;
    }
    block
}

#[test]
fn the_issue_s_example_is_laid_out_as_documented() {
    let layout = Layout::compute(&request("256M", Some("4352M"), "128M")).unwrap();
    assert_eq!(pieces(&layout), [(0, 256 * MIB)]);
    let window = layout.window.unwrap();
    assert_eq!(window.range.start(), GuestAddr::new(4 * GIB));
    assert_eq!(window.lmbs, LmbCount::new(32));
    assert_eq!(layout.guest_block, size("128M"));
    assert_eq!(layout.swiotlb_bytes, size("64M"));
    assert_eq!(layout.notices, []);
}

#[test]
fn small_memory_without_a_window_stays_below_4_gib() {
    let layout = Layout::compute(&request("256M", None, "128M")).unwrap();
    assert_eq!((layout.window, layout.swiotlb_bytes), (None, Bytes::ZERO));
    assert_eq!(layout.window_slots(), 0);
}

#[test]
fn the_end_of_ram_gives_each_guest_block() {
    for (block, end) in [
        ("128M", 1024 * MIB),
        ("256M", 64 * GIB + 256 * MIB),
        ("512M", 64 * GIB + 512 * MIB),
        ("1G", 65 * GIB),
        ("2G", 64 * GIB),
    ] {
        let mut asked = request("1G", Some("5G"), "64M");
        asked.guest_block = GuestBlock::Fixed(size(block));
        let layout = Layout::compute(&asked).unwrap();
        assert_eq!(layout.ram_end(), end, "{block}");
        assert_eq!(layout.guest_block, size(block));
        let start = layout.window.unwrap().range.start().get();
        assert!(start >= end && start.is_multiple_of(2 * GIB), "{block}");
        if block != "128M" {
            assert_eq!(
                pieces(&layout),
                [(0, 1022 * MIB), (end - 2 * MIB, end)],
                "{block}"
            );
        }
    }
}

#[test]
fn one_lmb_may_have_three_pieces() {
    let layout = Layout::compute(&request("4G", None, "4G")).unwrap();
    assert_eq!(layout.boot_lmbs, LmbCount::new(1));
    let lmb = layout.boot_lmb_pieces(LmbIndex::new(0));
    let kinds: Vec<PieceKind> = layout.boot.iter().map(|piece| piece.kind).collect();
    assert_eq!(kinds, [PieceKind::Low, PieceKind::High, PieceKind::Tail]);
    assert_eq!(lmb.len(), 3);
    assert_eq!(lmb.iter().map(|r| r.len().get()).sum::<u64>(), 4 * GIB);
    assert_eq!(layout.boot_lmb_pieces(LmbIndex::new(1)), []);
    assert_eq!(layout.boot_lmb_pieces(LmbIndex::new(u64::MAX)), []);
}

#[test]
fn ram_that_naturally_ends_right_has_no_tail() {
    // 63 GiB of RAM end at 64 GiB: aligned to 2 GiB.
    let layout = Layout::compute(&request("63G", None, "1G")).unwrap();
    // Wanted is 1 GiB: a tail shifts the end to an odd GiB.
    assert_eq!(layout.ram_end(), 65 * GIB);
    let mut asked = request("63G", None, "1G");
    asked.guest_block = GuestBlock::Fixed(size("2G"));
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(pieces(&layout), [(0, 3 * GIB), (4 * GIB, 64 * GIB)]);
    // Much RAM and a small block: the end is an odd multiple of 128 MiB.
    let layout = Layout::compute(&request("127G", None, "128M")).unwrap();
    assert_eq!(layout.ram_end(), 128 * GIB + 128 * MIB);
    assert_eq!(layout.guest_block, size("128M"));
}

#[test]
fn rounding_gives_one_notice_with_both_sizes() {
    let layout = Layout::compute(&request("300M", None, "128M")).unwrap();
    assert_eq!(layout.boot_bytes, size("384M"));
    let [notice] = &layout.notices[..] else {
        panic!("{:?}", layout.notices);
    };
    assert_eq!(
        notice.to_string(),
        "boot memory of 300 MiB is rounded up to 384 MiB, whole LMBs of 128 MiB"
    );
}

#[test]
fn what_is_refused_names_what_is_legal() {
    type Change = fn(&mut MemoryRequest);
    let cases: [(Change, &str); 14] = [
        (
            |r| r.memory = Bytes::ZERO,
            "from 256 MiB (one LMB) to 64 TiB",
        ),
        (
            |r| r.memory = size("65T"),
            "from 256 MiB (one LMB) to 64 TiB",
        ),
        (
            |r| r.max_memory = Some(size("1100M")),
            "nearest legal: 1 GiB or 1280 MiB",
        ),
        (
            |r| r.max_memory = Some(size("600M")),
            "nearest legal: 1 GiB",
        ),
        (
            |r| r.max_memory = Some(Bytes::new(u64::MAX)),
            "nearest legal: 17592186044160 MiB",
        ),
        (
            |r| r.max_memory = Some(size("512M")),
            "max memory of 512 MiB is less than boot memory of 1 GiB",
        ),
        (
            |r| r.max_memory = Some(Bytes::ZERO),
            "max memory of 0 B is less than boot memory of 1 GiB",
        ),
        (
            |r| r.max_memory = Some(size("66T")),
            "at most 64 TiB (max memory of 65537 GiB)",
        ),
        (
            |r| r.guest_block = GuestBlock::Fixed(size("384M")),
            "nearest legal: 256 MiB or 512 MiB",
        ),
        (
            |r| r.guest_block = GuestBlock::Fixed(size("64M")),
            "nearest legal: 128 MiB",
        ),
        (
            |r| r.guest_block = GuestBlock::Fixed(size("4G")),
            "nearest legal: 2 GiB",
        ),
        (
            |r| r.slot_size = Some(size("128M")),
            "nearest legal: 256 MiB",
        ),
        (
            |r| r.slot_size = Some(size("3G")),
            "nearest legal: 2 GiB or 4 GiB",
        ),
        (|r| r.slot_size = Some(size("8T")), "nearest legal: 4 TiB"),
    ];
    for (change, names) in cases {
        let mut asked = request("1G", Some("9G"), "256M");
        change(&mut asked);
        let text = Layout::compute(&asked).unwrap_err().to_string();
        assert!(text.contains(names), "{text} does not name {names}");
    }
}

#[test]
fn huge_pages_bound_the_lmb_and_the_guest_block() {
    let mut asked = request("2G", None, "512M");
    asked.page_size = PageSize::Huge1G;
    let text = Layout::compute(&asked).unwrap_err().to_string();
    assert!(text.contains("use an LMB size of 1 GiB or more"), "{text}");

    asked.lmb_size = "1G".parse().unwrap();
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(pieces(&layout), [(0, GIB), (64 * GIB, 65 * GIB)]);

    asked.guest_block = GuestBlock::Fixed(size("256M"));
    let text = Layout::compute(&asked).unwrap_err().to_string();
    assert!(text.contains("use smaller pages"), "{text}");

    // One page has no tail to spare: told where it follows, refused if fixed.
    asked.memory = size("1G");
    asked.guest_block = GuestBlock::Follow;
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(pieces(&layout), [(0, GIB)]);
    let [notice] = &layout.notices[..] else {
        panic!("{:?}", layout.notices);
    };
    assert!(notice.to_string().contains("cannot spare the 1 GiB piece"));
    asked.guest_block = GuestBlock::Fixed(size("1G"));
    assert!(matches!(
        Layout::compute(&asked),
        Err(GeometryError::GuestBlockImpossible { .. })
    ));
}

fn acpi(memory: &str, max: &str, lmb: &str) -> MemoryRequest {
    MemoryRequest {
        hotplug: Hotplug::Acpi,
        ..request(memory, Some(max), lmb)
    }
}

#[test]
fn an_acpi_lmb_is_whole_memory_blocks_of_the_guest() {
    for lmb in ["128M", "256M", "512M", "1G", "2G", "4G"] {
        let layout = Layout::compute(&acpi("4G", "68G", lmb)).unwrap();
        let (lmb, window) = (layout.lmb_size.bytes(), layout.window.unwrap());
        assert!(lmb.is_multiple_of(layout.guest_block), "{lmb}");
        assert!(window.range.start().get().is_multiple_of(lmb.get()));
        assert_eq!(layout.notices, []);
    }
    let text = Layout::compute(&acpi("1G", "9G", "64M"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("64 MiB is smaller"), "{text}");
    assert!(text.contains("block of 128 MiB"), "{text}");
    assert!(
        text.ends_with("use an LMB size of 128 MiB or more"),
        "{text}"
    );

    let mut asked = acpi("1G", "9G", "256M");
    asked.guest_block = GuestBlock::Fixed(size("1G"));
    let text = Layout::compute(&asked).unwrap_err().to_string();
    assert!(
        text.contains("LMB size of 1 GiB or more, or a guest block size of 256 MiB or less"),
        "{text}"
    );
    // Without a window nothing comes or goes.
    asked.max_memory = None;
    assert_eq!(Layout::compute(&asked).unwrap().hotplug, Hotplug::Acpi);
}

#[test]
fn more_acpi_lmbs_than_a_guest_boots_with_are_refused_with_what_is_legal() {
    // 1 TiB at 256 MiB and 16 TiB at 4 GiB are the most.
    for (max, lmb) in [("1025G", "256M"), ("16388G", "4G")] {
        let mut asked = acpi("1G", max, lmb);
        asked.memory = size("1G").round_up(size(lmb)).unwrap();
        let layout = Layout::compute(&asked).unwrap();
        assert_eq!(layout.window.unwrap().lmbs.get(), MAX_ACPI_LMBS);

        let more = size(max).checked_add(size(lmb)).unwrap();
        asked.max_memory = Some(more);
        let text = Layout::compute(&asked).unwrap_err().to_string();
        assert!(text.contains("has 4097 LMBs"), "{text}");
        asked.hotplug = Hotplug::VirtioMem;
        assert!(Layout::compute(&asked).is_ok());
    }
    let error = Layout::compute(&acpi("1G", "1026G", "256M")).unwrap_err();
    let GeometryError::TooManyAcpiLmbs {
        larger, max_memory, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((larger, max_memory), (Some(size("512M")), size("1025G")));
    let text = error.to_string();
    assert!(
        text.ends_with("use an LMB size of 512 MiB, or a max memory of at most 1025 GiB"),
        "{text}"
    );
    // 32 TiB are too many at any LMB size.
    let text = Layout::compute(&acpi("4G", "32772G", "4G"))
        .unwrap_err()
        .to_string();
    assert!(!text.contains("LMB size of"), "{text}");
}

#[test]
fn kinds_of_hotplug_have_their_names() {
    for hotplug in Hotplug::ALL {
        assert_eq!(hotplug.name().parse::<Hotplug>().unwrap(), hotplug);
    }
    let text = "ACPI".parse::<Hotplug>().unwrap_err().to_string();
    assert!(text.contains("use virtio-mem or acpi"), "{text}");
}

#[test]
fn a_narrow_host_is_named() {
    // 36 bits are 64 GiB: a 2 GiB block's end fits exactly, a smaller's not.
    let mut asked = request("1G", Some("5G"), "256M");
    asked.phys_bits = 36;
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(layout.guest_block, size("128M"));
    assert!(
        layout.notices[0]
            .to_string()
            .contains("36 physical address bits")
    );
    asked.guest_block = GuestBlock::Fixed(size("2G"));
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(layout.ram_end(), 64 * GIB);
    assert!(matches!(
        layout.notices[..],
        [Notice::WindowPastHostWidth { phys_bits: 36, .. }]
    ));
    asked.memory = size("64G");
    asked.max_memory = None;
    assert!(matches!(
        Layout::compute(&asked),
        Err(GeometryError::BootPastHostWidth { .. })
    ));
    for bits in [0, 31, 53, 64, 255] {
        asked.phys_bits = bits;
        assert_eq!(
            Layout::compute(&asked),
            Err(GeometryError::PhysBits { given: bits })
        );
    }
}

#[test]
fn what_the_kernel_entry_reaches_is_told() {
    let mut asked = request("1G", Some("65G"), "128M");
    asked.kernel_reach = Some(size("64G"));
    let layout = Layout::compute(&asked).unwrap();
    assert!(matches!(
        layout.notices[..],
        [Notice::WindowPastKernelReach { .. }]
    ));
    asked.lmb_size = "256M".parse().unwrap();
    let layout = Layout::compute(&asked).unwrap();
    assert!(matches!(
        layout.notices[..],
        [
            Notice::BootPastKernelReach { .. },
            Notice::WindowPastKernelReach { .. }
        ]
    ));
}

#[test]
fn a_rest_that_linux_cannot_plug_is_told() {
    let mut asked = request("1G", Some("3G"), "64M");
    asked.max_memory = Some(size("3264M"));
    let layout = Layout::compute(&asked).unwrap();
    let [Notice::WindowRestUnpluggable { rest, guest_block }] = layout.notices[..] else {
        panic!("{:?}", layout.notices);
    };
    assert_eq!((rest, guest_block), (size("64M"), size("128M")));
}

#[test]
fn a_window_of_64_tib_in_128_mib() {
    let mut asked = request("1G", Some("65537G"), "128M");
    asked.phys_bits = 48;
    asked.max_map_count = Some(65_530);
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!(layout.window.unwrap().lmbs, LmbCount::new(524_288));
    assert_eq!(layout.slot_size, size("8G"));
    assert_eq!(layout.window_slots(), 8_192);
    assert_eq!(layout.worst_case_mappings, 524_288 + 1 + MAPPING_HEADROOM);
    assert!(matches!(
        layout.notices[..],
        [Notice::MappingsPastLimit { limit: 65_530, .. }]
    ));
}

#[test]
fn slots_are_as_few_as_there_are() {
    let mut asked = request("1G", Some("65G"), "128M");
    asked.max_slots = 17;
    let layout = Layout::compute(&asked).unwrap();
    assert_eq!((layout.slot_size, layout.window_slots()), (size("4G"), 16));
    asked.slot_size = Some(size("1G"));
    let text = Layout::compute(&asked).unwrap_err().to_string();
    assert!(
        text.contains("need 65 KVM slots and there are 17; use a slot size of 4 GiB or more"),
        "{text}"
    );
    asked.max_slots = 1;
    let text = Layout::compute(&asked).unwrap_err().to_string();
    assert!(
        text.ends_with("need 65 KVM slots and there are 1"),
        "{text}"
    );
    asked.max_slots = 0;
    asked.max_memory = None;
    assert!(matches!(
        Layout::compute(&asked),
        Err(GeometryError::TooManySlots { .. })
    ));
}

#[test]
fn option_texts() {
    assert_eq!("follow".parse(), Ok(GuestBlock::Follow));
    assert_eq!("512M".parse(), Ok(GuestBlock::Fixed(size("512M"))));
    assert!("Follow".parse::<GuestBlock>().is_err());
    for page in PageSize::ALL {
        assert_eq!(page.to_string().parse(), Ok(page));
        let json = serde_json::to_string(&page).unwrap();
        assert_eq!(json, format!("\"{page}\""));
        assert_eq!(serde_json::from_str::<PageSize>(&json).unwrap(), page);
    }
    let error = "4M".parse::<PageSize>().unwrap_err().to_string();
    assert!(error.contains("use off, thp, 2M or 1G"));
    for block in [GuestBlock::Follow, GuestBlock::Fixed(size("1G"))] {
        let json = serde_json::to_string(&block).unwrap();
        assert_eq!(serde_json::from_str::<GuestBlock>(&json).unwrap(), block);
    }
}

fn any_size() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => (0_u64..=2 << 20).prop_map(|mib| Bytes::new(mib << 20)),
        2 => (1_u64..=300).prop_map(|gib| Bytes::new(gib << 30)),
        1 => (0_u64..=66 << 40).prop_map(Bytes::new),
        1 => any::<u64>().prop_map(Bytes::new),
    ]
}

prop_compose! {
    fn any_request()(
        memory in any_size(),
        max in prop::option::of(any_size()),
        lmb in 21_u32..=32,
        whole in prop::bool::weighted(0.8),
        block in prop_oneof![
            2 => Just(GuestBlock::Follow),
            2 => (27_u32..=31).prop_map(|shift| GuestBlock::Fixed(Bytes::new(1 << shift))),
            1 => any_size().prop_map(GuestBlock::Fixed),
        ],
        slot in prop::option::of(prop_oneof![
            3 => (21_u32..=43).prop_map(|shift| Bytes::new(1 << shift)),
            1 => any_size(),
        ]),
        page in prop::sample::select(PageSize::ALL.to_vec()),
        hotplug in prop::sample::select(Hotplug::ALL.to_vec()),
        phys_bits in prop_oneof![4 => 36_u8..=52, 1 => any::<u8>()],
        kernel_reach in prop::option::of(any_size()),
        max_map_count in prop::option::of(0_u64..1 << 20),
        max_slots in prop_oneof![3 => Just(32_764), 1 => 0_u64..600],
    ) -> MemoryRequest {
        let lmb_size = LmbSize::new(Bytes::new(1 << lmb)).unwrap();
        let max_memory = max.map(|max| if whole { max.round_down(lmb_size.bytes()) } else { max });
        MemoryRequest {
            memory, max_memory, lmb_size, guest_block: block, slot_size: slot, page_size: page,
            hotplug, phys_bits, kernel_reach, max_map_count, max_slots,
        }
    }
}

/// The rules of the module's head, checked one by one.
fn check_boot(request: &MemoryRequest, layout: &Layout) {
    let (lmb, page) = (request.lmb_size.bytes(), request.page_size.bytes());
    assert!(lmb >= page);
    assert!(layout.boot_bytes >= request.memory && layout.boot_bytes.is_multiple_of(lmb));
    assert!(layout.boot_bytes.get() - request.memory.get() < lmb.get());
    let mut last_end = 0;
    let mut sum = 0;
    for piece in &layout.boot {
        assert!(piece.range.start().get() >= last_end);
        assert!(piece.range.start().get().is_multiple_of(page.get()));
        assert!(piece.range.len().is_multiple_of(page));
        assert_eq!(piece.range.intersection(&layout.hole), None);
        last_end = piece.range.end();
        sum += piece.range.len().get();
    }
    assert_eq!(sum, layout.boot_bytes.get());
    assert!(u128::from(last_end) <= 1 << request.phys_bits);
    assert_eq!(
        layout.boot_lmbs.get().checked_mul(lmb.get()),
        Some(layout.boot_bytes.get())
    );
    let rounded = layout
        .notices
        .iter()
        .filter(|notice| matches!(notice, Notice::RoundedUp { .. }))
        .count();
    assert_eq!(rounded == 1, layout.boot_bytes != request.memory);
}

fn check_block(request: &MemoryRequest, layout: &Layout) {
    let block = layout.guest_block.get();
    assert_eq!(block, linux_probe(layout.ram_end()));
    let followed = !layout
        .notices
        .iter()
        .any(|notice| matches!(notice, Notice::GuestBlockNotFollowed { .. }));
    match request.guest_block {
        GuestBlock::Fixed(size) => assert_eq!(size.get(), block),
        GuestBlock::Follow => {
            let wanted = request.lmb_size.bytes().get().clamp(128 * MIB, 2 * GIB);
            assert_eq!(followed, block == wanted);
        }
    }
    let tail = layout.boot.last().filter(|p| p.kind == PieceKind::Tail);
    if let Some(tail) = tail {
        // No lower end of RAM would do: neither its natural one nor any
        // between the rest of RAM and the tail.
        let rest = &layout.boot[layout.boot.len() - 2].range;
        assert!(tail.range.len().get() <= request.page_size.bytes().get().max(2 * MIB));
        let lowest = (rest.end() + tail.range.len().get()).max(64 * GIB);
        let ends = (lowest.next_multiple_of(128 * MIB)..).step_by(128 << 20);
        let first = ends.take(64).find(|end| linux_probe(*end) == block);
        assert_eq!(first, Some(layout.ram_end()));
    }
}

fn check_window(request: &MemoryRequest, layout: &Layout) {
    let lmb = request.lmb_size.bytes().get();
    let floor = layout.ram_end().max(4 * GIB);
    let asked = request
        .max_memory
        .map_or(0, |max| max.get() - layout.boot_bytes.get());
    assert_eq!(layout.window.is_some(), asked > 0);
    let mut end = layout.ram_end();
    if let Some(window) = &layout.window {
        let start = window.range.start().get();
        let align = lmb.max(2 * GIB);
        assert!(start >= floor && start - floor < align && start.is_multiple_of(align));
        assert_eq!(window.range.len().get(), asked);
        assert_eq!(window.lmbs.get() * lmb, asked);
        if layout.hotplug == Hotplug::Acpi {
            assert!(window.lmbs.get() <= MAX_ACPI_LMBS);
            assert!(lmb.is_multiple_of(layout.guest_block.get()));
        }
        end = window.range.end();
    }
    let past = |wanted: fn(&Notice) -> bool| layout.notices.iter().any(wanted);
    let windowed = layout.window.is_some();
    assert_eq!(
        past(|n| matches!(n, Notice::WindowPastHostWidth { .. })),
        windowed && u128::from(end) > 1 << request.phys_bits
    );
    assert_eq!(
        past(|n| matches!(n, Notice::WindowPastKernelReach { .. })),
        windowed && request.kernel_reach.is_some_and(|reach| end > reach.get())
    );
    assert_eq!(
        past(|n| matches!(n, Notice::WindowRestUnpluggable { .. })),
        !asked.is_multiple_of(layout.guest_block.get())
    );
    assert_eq!(
        layout.swiotlb_bytes.get(),
        if end > 4 * GIB { 64 * MIB } else { 0 }
    );
    let slot = layout.slot_size.get();
    assert!(slot.is_power_of_two() && slot >= lmb && slot <= 4 << 40);
    assert!(layout.window_slots() * slot >= asked);
    assert!(layout.window_slots() + layout.boot.len() as u64 <= request.max_slots);
    assert!(request.slot_size.is_none_or(|size| size.get() == slot));
}

fn check_lmbs(layout: &Layout) {
    let lmb = layout.lmb_size.bytes().get();
    let count = layout.boot_lmbs.get();
    let mut last_end = 0;
    // Ends and middle: all of them would be many.
    let some: BTreeSet<u64> = (0..count.min(8))
        .chain(count.saturating_sub(8)..count)
        .collect();
    for index in some {
        let pieces = layout.boot_lmb_pieces(LmbIndex::new(index));
        assert!((1..=3).contains(&pieces.len()));
        assert_eq!(pieces.iter().map(|p| p.len().get()).sum::<u64>(), lmb);
        for piece in &pieces {
            let homes = layout
                .boot
                .iter()
                .map(|home| home.range.intersection(piece));
            assert_eq!(homes.flatten().collect::<Vec<_>>(), [*piece]);
        }
        assert!(pieces[0].start().get() >= last_end);
        last_end = pieces.last().unwrap().end();
    }
    assert_eq!(layout.boot_lmb_pieces(LmbIndex::new(count)), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_layout_obeys_the_rules(request in any_request()) {
        match Layout::compute(&request) {
            Ok(layout) => {
                check_boot(&request, &layout);
                check_block(&request, &layout);
                check_window(&request, &layout);
                check_lmbs(&layout);
                for notice in &layout.notices {
                    prop_assert!(!notice.to_string().is_empty());
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn the_nearest_legal_max_memory_is_legal(
        lmb in 21_u32..=32, memory in 1_u64..8 << 30, max in 1_u64..1 << 40
    ) {
        let mut asked = request("1G", None, "256M");
        asked.lmb_size = LmbSize::new(Bytes::new(1 << lmb)).unwrap();
        asked.memory = Bytes::new(memory);
        asked.max_memory = Some(Bytes::new(max));
        if let Err(GeometryError::MaxNotWholeLmbs { below, above, .. }) = Layout::compute(&asked) {
            for legal in [Some(below), above].into_iter().flatten() {
                asked.max_memory = Some(legal);
                prop_assert!(Layout::compute(&asked).is_ok(), "{}", legal);
            }
        }
    }
}
