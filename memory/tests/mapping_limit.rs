//! Every second LMB plugged, up to the host's limit of mappings. Alone in its
//! process, since it uses up what all of it may have.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{layout, permissions, run};
use lmb_memory::{
    BackingOptions, Bytes, HostMemoryError, LmbIndex, MAPPING_HEADROOM, PageSize, WindowMemory,
    create,
};

fn mappings() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count() as u64
}

#[test]
fn at_the_limit_a_plug_is_refused_and_the_rest_goes_on() {
    let limit: u64 = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let max = Bytes::new((limit + 8) * (2 << 20)).to_string();
    let layout = layout("2M", Some(&max), "2M", PageSize::Small);
    let ram = create(&layout, &BackingOptions::default()).unwrap();
    let mut window = ram.window.unwrap();

    let mut opened = Vec::new();
    let refused = (1..limit).step_by(2).find_map(|lmb| {
        let result = window.open(run(lmb, 1));
        match result {
            Ok(()) => {
                opened.push(lmb);
                None
            }
            Err(error) => Some((lmb, error)),
        }
    });
    let (lmb, error) = refused.unwrap();
    let HostMemoryError::MappingLimit {
        in_use,
        limit: named,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(named, limit);
    // Refused when the headroom begins: not before, and not by the kernel.
    // (Reading them for the test takes a mapping or two of its own.)
    assert!(in_use.abs_diff(mappings()) < 8, "{in_use}, {}", mappings());
    assert!(in_use + MAPPING_HEADROOM <= limit);
    assert!(in_use + MAPPING_HEADROOM + 2 > limit, "{in_use} of {limit}");
    let host = window.host_address(LmbIndex::new(lmb));
    assert!(permissions(host).starts_with("---"));

    // The process is well: threads (stacks are mappings) and heap work.
    let sum = std::thread::spawn(|| {
        vec![1_u8; 8 << 20]
            .iter()
            .map(|b| u64::from(*b))
            .sum::<u64>()
    });
    assert_eq!(sum.join().unwrap(), 8 << 20);

    // Closing what stands alone needs no mapping and frees two; what joins
    // neighbours needs none either.
    let last = opened.pop().unwrap();
    window.close(run(last, 1)).unwrap();
    window.discard(run(last, 1)).unwrap();
    window.open(run(opened[0] + 1, 1)).unwrap();
    window.close(run(opened[0], 3)).unwrap();
    window.discard(run(opened[0], 3)).unwrap();
    for lmb in &opened[2..] {
        window.close(run(*lmb, 1)).unwrap();
        window.discard(run(*lmb, 1)).unwrap();
    }
    window.open(run(lmb, 1)).unwrap();
    assert!(mappings() < MAPPING_HEADROOM, "{}", mappings());
}
