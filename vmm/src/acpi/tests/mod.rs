//! The memory devices' table, run against the device that it is made for.

mod aml;

use std::sync::Arc;

use lmb_devices::acpi_mem::MAX_LMBS;
use lmb_devices::testing::{Counter, Level, Statuses};
use lmb_devices::{AcpiMem, AcpiMemEvent, BusDevice, Notice, OstSource, Stamp};

use self::aml::{Namespace, Value, World};
use super::memory::{MemoryDevices, build};
use super::*;
use crate::config::{HostLimits, VmConfig};

const MHPC: &str = "._SB_.MHPC";
const EVT: &str = "._SB_.GEVT._EVT";
/// Counts of LMBs around the borders of groups.
const COUNTS: [u32; 8] = [1, 2, 63, 64, 65, 200, 1024, MAX_LMBS];

/// A guest with a window of memory devices.
struct Rig {
    device: AcpiMem,
    line: Arc<Level>,
    namespace: Namespace,
    guest: Guest,
}

/// What the AML reaches.
struct Guest {
    bus: Arc<dyn BusDevice>,
    table: Arc<Statuses>,
    table_at: u64,
    notified: Vec<(String, u64)>,
}

impl World for Guest {
    fn io_read(&mut self, port: u64) -> u32 {
        let mut data = [0; 4];
        self.bus
            .read(port - u64::from(platform::ACPI_MEM_PORT), &mut data);
        u32::from_le_bytes(data)
    }

    fn io_write(&mut self, port: u64, value: u32) {
        let offset = port - u64::from(platform::ACPI_MEM_PORT);
        self.bus.write(offset, &value.to_le_bytes());
    }

    fn memory_read(&mut self, address: u64) -> u8 {
        let lmb = u32::try_from(address - self.table_at).unwrap();
        self.table.get(lmb)
    }

    fn notify(&mut self, device: &str, value: u64) {
        self.notified.push((device.to_owned(), value));
    }
}

fn devices(lmbs: u32) -> MemoryDevices {
    MemoryDevices {
        start: 0x10_8000_0000,
        lmb_bytes: 256 << 20,
        lmbs,
        node: 3,
        status_table: 0x1fdf_f000,
    }
}

fn lmb_path(lmb: u32) -> String {
    format!("{MHPC}.G{:03X}.L{lmb:03X}", lmb / 64)
}

impl Rig {
    fn new(lmbs: u32) -> Self {
        let devices = devices(lmbs);
        let line = Arc::new(Level::default());
        let table = Arc::new(Statuses::new(lmbs as usize));
        let wake = Arc::new(Counter::default());
        let device = AcpiMem::new(lmbs, table.clone(), line.clone(), wake, Stamp::default);
        Self {
            guest: Guest {
                bus: device.bus_device(),
                table,
                table_at: devices.status_table,
                notified: Vec::new(),
            },
            device,
            line,
            namespace: Namespace::load(&build(&devices)),
        }
    }

    fn run(&mut self, path: &str, args: &[u64]) -> (u64, u64) {
        self.namespace.evaluate(path, args, &mut self.guest)
    }

    fn of_lmb(&mut self, lmb: u32, method: &str, args: &[u64]) -> u64 {
        self.run(&format!("{}.{method}", lmb_path(lmb)), args).0
    }
}

#[test]
fn each_lmb_is_a_memory_device_with_its_own_range() {
    for lmbs in COUNTS {
        let rig = Rig::new(lmbs);
        let memory_id = rig.namespace.value(&format!("{}._HID", lmb_path(0)));
        let described = devices(lmbs);
        for lmb in 0..lmbs {
            let path = lmb_path(lmb);
            let value = |name: &str| rig.namespace.value(&format!("{path}.{name}"));
            assert_eq!(value("_UID"), &Value::Integer(lmb.into()));
            assert_eq!(value("_HID"), memory_id);
            let Value::Buffer(resources) = value("_CRS") else {
                panic!("{path}._CRS is no buffer");
            };
            // A QWord address space descriptor (ACPI 6.5, 6.4.3.5.1).
            let qword = |at: usize| u64::from_le_bytes(resources[at..at + 8].try_into().unwrap());
            let start = described.start + u64::from(lmb) * described.lmb_bytes;
            assert_eq!(resources[..4], [0x8a, 0x2b, 0, 0]);
            assert_eq!(qword(14), start);
            assert_eq!(qword(22), start + described.lmb_bytes - 1);
            assert_eq!(qword(38), described.lmb_bytes);
            assert_eq!(resources[46..], [0x79, 0]);
        }
        let groups = lmbs.div_ceil(64);
        for group in 0..groups {
            let path = format!("{MHPC}.G{group:03X}._PXM");
            assert_eq!(rig.namespace.value(&path), &Value::Integer(3));
        }
        // And the container and the event device.
        let count = (lmbs + groups + 2) as usize;
        assert_eq!(rig.namespace.devices().len(), count);
    }
}

#[test]
fn one_interrupt_notifies_what_is_pending_and_lowers_the_line() {
    for lmbs in COUNTS {
        let mut rig = Rig::new(lmbs);
        assert!(rig.line.is_high());
        rig.run(EVT, &[platform::ACPI_MEM_GSI.into()]);
        assert!(rig.device.guest_up() && !rig.line.is_high());
        assert_eq!(rig.guest.notified, []);

        let mut expected = Vec::new();
        for lmb in (0..lmbs).rev() {
            let notice = if lmb.is_multiple_of(3) {
                Notice::EjectRequest
            } else {
                Notice::DeviceCheck
            };
            rig.device.notify(lmb, notice);
            expected.push((lmb_path(lmb), u64::from(notice.value())));
        }
        assert!(rig.line.is_high());
        let (_, terms) = rig.run(EVT, &[platform::ACPI_MEM_GSI.into()]);
        assert!(!rig.line.is_high());
        assert_eq!(rig.guest.notified, expected);
        // A few terms and two for each halving, not one for each LMB.
        let halvings = u64::from(32 - lmbs.leading_zeros()) + 2;
        assert!(terms <= u64::from(lmbs) * (6 + 2 * halvings), "{terms}");
    }
}

#[test]
fn status_eject_and_report_reach_their_lmb_alone() {
    for lmbs in COUNTS {
        let mut rig = Rig::new(lmbs);
        for lmb in [0, lmbs / 2, lmbs - 1] {
            assert_eq!(rig.of_lmb(lmb, "_STA", &[]), 0);
            rig.device.show(lmb, true);
            assert_eq!(rig.of_lmb(lmb, "_STA", &[]), 0x0f);
            rig.of_lmb(lmb, "_EJ0", &[1]);
            assert_eq!(rig.of_lmb(lmb, "_STA", &[]), 0);
            // Sources and statuses are wider than what is passed on.
            rig.of_lmb(lmb, "_OST", &[0x103, 0xffff_ff84, 0]);
            let events = rig.device.take_events(usize::MAX);
            let [
                AcpiMemEvent::Ejected { lmb: ejected, .. },
                AcpiMemEvent::Ost {
                    lmb: reported,
                    notice: OstSource::EjectRequest,
                    status,
                    ..
                },
            ] = events[..]
            else {
                panic!("{events:?}");
            };
            assert_eq!((ejected, reported), (lmb, lmb));
            assert!(status.in_progress());
        }
        assert_eq!(rig.device.counters(), Default::default());
        assert!(rig.guest.table.all().iter().all(|status| *status == 0));
    }
}

fn layout(json: &str) -> Layout {
    let limits = HostLimits {
        phys_bits: 48,
        max_map_count: None,
        max_slots: 32_764,
    };
    let options = serde_json::from_str(json).unwrap();
    VmConfig::new(options).unwrap().layout(limits).unwrap()
}

#[test]
fn the_root_lists_the_table_where_it_stands() {
    let layout = layout(
        r#"{"memory": "256M", "max_memory": "1T", "hotplug": "acpi",
            "guest_block_size": "128M"}"#,
    );
    let tables = super::build(&layout, 4, &[]).unwrap();
    let top = tables.top.unwrap();
    assert_eq!(top.lmbs, 4095);
    assert_eq!((top.end, top.status_table), (256 << 20, (256 << 20) - 4096));
    assert!(top.start.is_multiple_of(4096));
    let gap = top.status_table - top.start - top.table.len() as u64;
    assert!(gap < 4096, "{gap}");
    let entry = top.start.to_le_bytes();
    assert!(tables.image.windows(8).any(|bytes| bytes == entry));
}

#[test]
fn without_memory_devices_there_is_no_such_area() {
    for json in [
        r#"{"memory": "1G", "max_memory": "9G"}"#,
        r#"{"memory": "1G", "hotplug": "acpi"}"#,
    ] {
        let tables = super::build(&layout(json), 1, &[]).unwrap();
        assert_eq!(tables.top, None);
    }
}
