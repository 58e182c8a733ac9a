//! What no guest brings about at will: a reset between two of the window's own
//! steps.

use lmb_devices::mmio::registers::STATUS;

use super::{Observer, VirtioWindow};
use crate::coordinator::Coordinator;
use crate::coordinator::tests::rig::Rig;

fn virtio(coordinator: &mut Coordinator) -> &mut VirtioWindow {
    coordinator.windows[0].as_any_mut().downcast_mut().unwrap()
}

#[test]
fn a_request_whose_device_is_reset_before_its_effect_starts_has_none() {
    let mut rig = Rig::new();
    rig.add(1);
    rig.guest().step();
    let window = virtio(&mut rig.coordinator);
    let machine = window.machine.as_mut().unwrap();
    let (ticket, request) = machine.device.next_request(&machine.ram).unwrap();
    let plan = window.decide(request).unwrap();
    // A driver that reads the configuration now finds nothing plugged, and
    // will ask for the same LMB.
    rig.guest().driver.mmio.write(STATUS, 0);
    assert_eq!(rig.guest().config().plugged_size, 0);
    let coordinator = &mut rig.coordinator;
    let mut observer = Observer {
        log: &mut coordinator.log,
        clock: &*coordinator.clock,
    };
    let window = coordinator.windows[0].as_any_mut();
    let window = window.downcast_mut::<VirtioWindow>().unwrap();
    window.begin(ticket, plan, &mut observer);
    assert!(!rig.busy());
    rig.probe();
    rig.assert_agreement();
    rig.run();
    rig.assert_agreement();
    assert_eq!((rig.plugged_lmbs(), rig.guest().busys), (1, 0));
}
