//! Configuration files: any text is refused with a reason or gives options
//! that survive being written and read again, and a layout by the rules.
//!
//! The first four bytes are the host: its address width, and its slots.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lmb_fuzz::input::Input;
use lmb_fuzz::layout::check;
use lmb_memory::{GeometryError, Layout, MemoryRequest};
use lmb_vmm::config::{ConfigError, HostLimits, LayoutReport, Options, VmConfig};

/// What the configuration asks of the layout. The kernel's reach stays out of
/// it: what it comes to is only told.
fn request_of(config: &VmConfig, host: HostLimits) -> MemoryRequest {
    MemoryRequest {
        memory: config.memory,
        max_memory: config.max_memory,
        lmb_size: config.lmb_size,
        guest_block: config.guest_block,
        slot_size: config.slot_size,
        page_size: config.page_size,
        hotplug: config.hotplug,
        phys_bits: host.phys_bits,
        kernel_reach: None,
        max_map_count: host.max_map_count,
        max_slots: host.max_slots,
    }
}

fn check_report(layout: &Layout) {
    let report = LayoutReport::new(layout);
    assert!(report.to_string().lines().count() >= 6);
    let json = serde_json::to_value(&report).expect("a report is JSON");
    assert_eq!(json["boot_bytes"].as_u64(), Some(layout.boot_bytes.get()));
    let pieces = json["boot_pieces"].as_array().expect("pieces");
    assert_eq!(pieces.len(), layout.boot.len());
    let lmbs = layout.boot_lmbs.get();
    assert!(pieces.iter().all(|piece| {
        let (first, last) = (piece["first_lmb"].as_u64(), piece["last_lmb"].as_u64());
        first <= last && last < Some(lmbs)
    }));
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let host = HostLimits {
        phys_bits: input.u8(),
        max_map_count: Some(u64::from(input.u8()) << 10),
        max_slots: u64::from(input.u16()),
    };
    let Ok(text) = std::str::from_utf8(input.rest()) else {
        return;
    };
    let options: Options = match serde_json::from_str(text) {
        Ok(options) => options,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let written = serde_json::to_string(&options).expect("options are JSON");
    let again: Options = serde_json::from_str(&written).expect("what was written is read");
    assert_eq!(options, again);
    assert_eq!(options.clone().over(again), options);
    let config = match VmConfig::new(options) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let request = request_of(&config, host);
    let plain: Result<Layout, GeometryError> = Layout::compute(&request);
    check(&request, &plain);
    match (config.layout(host), plain) {
        (Ok(layout), Ok(plain)) => {
            assert_eq!(layout.boot, plain.boot);
            assert_eq!(layout.window, plain.window);
            assert_eq!(layout.slot_size, plain.slot_size);
            check_report(&layout);
        }
        (Err(ConfigError::Geometry(error)), Err(plain)) => assert_eq!(error, plain),
        (with, without) => panic!("{with:?} and {without:?}"),
    }
});
