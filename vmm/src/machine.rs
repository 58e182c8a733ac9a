//! One build of the virtual machine: from a configuration to vCPUs that stand
//! before their first entry. [`Machine::build`] reads from top to bottom in
//! the order in which things come to be.
//!
//! States: built → started → stopped, and dropped. A guest's reset drops the
//! machine and builds the next from the same configuration, so that nothing of
//! the old guest is left in KVM, devices or memory.

use std::io;
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuFd, VmFd};
use lmb_devices::{
    AcpiMem, BootMarks, InterruptLine, LevelLine, MemConfig, MemFeatures, OwnerWake, PowerDevice,
    Serial, Stamp, StatusTable, VirtioMem, acpi_mem,
};
use lmb_memory::{BackingOptions, GuestRam, HostMemoryError, HostRam, Hotplug, Layout, Prefault};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::acpi::{self, AcpiError, MmioDevice, TopArea};
use crate::boot::image::ImageError;
use crate::boot::load::{Entry, load};
use crate::boot::place::write_bytes;
use crate::boot::{ACPI, BootError, GDT, RESET_VECTOR};
use crate::bus::Bus;
use crate::config::{ConfigError, VmConfig};
use crate::console::ConsoleOutput;
use crate::coordinator::{HotplugDevice, WindowParts};
use crate::files::VmFiles;
use crate::kvm::KvmError;
use crate::platform;
use crate::reset::{self, KeyboardReset};
use crate::sandbox::{Sandbox, ThreadKind};
use crate::slots::{KvmWindow, add_boot_memory};
use crate::timeline::stamp;
use crate::vcpu::{Shared, VcpuSet, cpuid, regs};

/// Offset of the virtio-mmio QueueNotify register (virtio 1.3, 4.2.2).
const QUEUE_NOTIFY: u64 = 0x50;

/// Why a machine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// KVM cannot be used.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel file.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Placing the kernel.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The ACPI tables.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// Host memory.
    #[error(transparent)]
    Memory(#[from] HostMemoryError),
    /// KVM refused a step.
    #[error("KVM cannot {what}: {source}")]
    Step {
        /// The step.
        what: &'static str,
        /// KVM's reason.
        source: io::Error,
    },
    /// The host refused something that is not KVM's.
    #[error("cannot {what}: {source}")]
    Host {
        /// What.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

fn step<T>(what: &'static str, result: Result<T, kvm_ioctls::Error>) -> Result<T, BuildError> {
    result.map_err(|error| BuildError::Step {
        what,
        source: error.into(),
    })
}

fn host<T>(what: &'static str, result: io::Result<T>) -> Result<T, BuildError> {
    result.map_err(|source| BuildError::Host { what, source })
}

/// An interrupt line of the guest, raised through an irqfd.
struct IrqFd(EventFd);

impl InterruptLine for IrqFd {
    fn trigger(&self) {
        if let Err(error) = self.0.write(1) {
            tracing::error!("an interrupt was lost: {error}");
        }
    }
}

/// A level-triggered interrupt of the guest, held by KVM.
struct IrqLevel {
    vm: Arc<VmFd>,
    gsi: u32,
}

impl LevelLine for IrqLevel {
    fn set(&self, high: bool) {
        if let Err(error) = self.vm.set_irq_line(self.gsi, high) {
            let gsi = self.gsi;
            tracing::error!(gsi, high, "an interrupt's level was not set: {error}");
        }
    }
}

/// The status table of memory devices in guest memory.
struct GuestStatusTable {
    ram: GuestRam,
    address: u64,
}

impl StatusTable for GuestStatusTable {
    fn set(&self, lmb: u32, status: u8) {
        let address = GuestAddress(self.address.saturating_add(lmb.into()));
        if let Err(error) = self.ram.write_obj(status, address) {
            tracing::error!(lmb, status, "an LMB's status was not written: {error}");
        }
    }
}

/// Stamps of a build.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildStamps {
    /// Kernel file read and unpacked.
    pub kernel_read: Stamp,
    /// Guest memory mapped.
    pub memory_created: Stamp,
    /// Kernel, initrd and tables placed.
    pub kernel_loaded: Stamp,
}

/// A machine. Fields are dropped in this order: vCPUs before the VM, the VM
/// before the memory that its slots point to.
pub struct Machine {
    started: Option<VcpuSet>,
    vcpus: Vec<VcpuFd>,
    shared: Arc<Shared>,
    sandbox: Sandbox,
    /// Written by KVM when the guest notifies the virtio-mem queue.
    pub queue_notify: EventFd,
    /// The window, until the coordinator takes it.
    pub window: Option<WindowParts>,
    _vm: Arc<VmFd>,
    /// Boot marks.
    pub marks: Arc<BootMarks>,
    /// Power device.
    pub power: Arc<PowerDevice>,
    /// Serial port.
    pub serial: Arc<Serial>,
    /// Where its output goes.
    pub output: ConsoleOutput,
    /// Kernel version, if the image names it.
    pub kernel_version: Option<String>,
    /// How the kernel is entered.
    pub entry: Entry,
    /// When what was ready.
    pub stamps: BuildStamps,
    _ram: GuestRam,
}

impl Machine {
    /// Builds a machine, whose threads `sandbox` will confine. Files are read
    /// and checked before the VM exists.
    ///
    /// # Errors
    /// The first step that fails; everything made before it is undone.
    pub fn build(
        kvm: &Kvm,
        config: &VmConfig,
        layout: &Layout,
        files: &VmFiles,
        sandbox: &Sandbox,
        wake: &Arc<dyn OwnerWake>,
    ) -> Result<Self, BuildError> {
        let kernel = files.kernel.read(config.entry)?;
        let kernel_read = stamp();
        let output = host("share the serial port's output", files.output())?;
        let output = ConsoleOutput::new(output, Arc::clone(wake));

        let vm = Arc::new(create_vm(kvm)?);
        let memory = lmb_memory::create(
            layout,
            &BackingOptions {
                shared: config.shared,
                prefault: config.prefault_threads.map(|threads| {
                    let sandbox = sandbox.clone();
                    Prefault::with_entry(
                        threads,
                        move || Ok(sandbox.confine(ThreadKind::Prefault)?),
                    )
                }),
            },
        )?;
        let boot_slots = step(
            "take the guest's memory",
            add_boot_memory(&vm, &memory.boot_regions),
        )?;
        let memory_created = stamp();

        let ram = memory.guest.clone();
        let devices = mem_device(layout);
        let tables = acpi::build(layout, config.cpus, &devices)?;
        let top = tables.top.as_ref();
        let entry = load(
            &ram,
            layout,
            top,
            &kernel,
            files.initrd.as_ref(),
            &config.cmdline,
        )?;
        write_bytes(&ram, ACPI, &tables.image)?;
        if let Some(top) = top {
            write_bytes(&ram, top.start, &top.table)?;
        }
        write_bytes(&ram, GDT, &regs::gdt(entry.kind))?;
        write_bytes(&ram, RESET_VECTOR, &reset::stub())?;
        let kernel_loaded = stamp();

        let mut bus = Bus::default();
        let serial = Arc::new(Serial::new(
            interrupt(&vm, platform::COM1_GSI)?,
            Box::new(output.clone()),
            Arc::clone(wake),
        ));
        let marks = Arc::new(BootMarks::new(Arc::clone(wake), stamp));
        let power = Arc::new(PowerDevice::new(Arc::clone(wake)));
        bus.add_io(platform::COM1_PORT, 8, Arc::clone(&serial) as _);
        bus.add_io(platform::MARKS_PORT, 16, Arc::clone(&marks) as _);
        bus.add_io(platform::POWER_PORT, 3, Arc::clone(&power) as _);
        bus.add_io(
            platform::KEYBOARD_PORT,
            1,
            Arc::new(KeyboardReset::new(Arc::clone(&power))),
        );
        let queue_notify = host("make an event descriptor", EventFd::new(EFD_NONBLOCK))?;
        let device = match (top, devices.first()) {
            (Some(top), _) => Some(acpi_device(&vm, &mut bus, &ram, top, wake)),
            (None, Some(&place)) => {
                let interrupt = interrupt(&vm, place.gsi)?;
                // The coordinator publishes the window's state when it takes
                // the device over, before the guest can look.
                let device = VirtioMem::new(
                    MemConfig::default(),
                    MemFeatures::default(),
                    interrupt,
                    Arc::clone(wake),
                );
                connect(&vm, &mut bus, place, &device, &queue_notify)?;
                Some(HotplugDevice::VirtioMem(device))
            }
            (None, None) => None,
        };
        let window = device
            .map(|device| window(&vm, layout, memory, boot_slots, device, sandbox))
            .transpose()?;

        let vcpus = create_vcpus(kvm, &vm, config.cpus, entry)?;
        Ok(Self {
            started: None,
            vcpus,
            shared: Arc::new(Shared::new(bus, Arc::clone(wake))),
            sandbox: sandbox.clone(),
            queue_notify,
            window,
            _vm: vm,
            marks,
            power,
            serial,
            output,
            kernel_version: kernel.version,
            entry,
            stamps: BuildStamps {
                kernel_read,
                memory_created,
                kernel_loaded,
            },
            _ram: ram,
        })
    }

    /// Lets the vCPUs enter the guest.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(&mut self) -> Result<(), BuildError> {
        let vcpus = std::mem::take(&mut self.vcpus);
        self.started = Some(host(
            "start the vCPU threads",
            VcpuSet::start(vcpus, Arc::clone(&self.shared), &self.sandbox),
        )?);
        Ok(())
    }

    /// Takes the vCPUs out of the guest for good.
    pub fn stop(&mut self) {
        if let Some(vcpus) = self.started.take() {
            vcpus.stop();
        }
    }

    /// What the vCPU threads share.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

fn create_vm(kvm: &Kvm) -> Result<VmFd, BuildError> {
    let vm = loop {
        match kvm.create_vm() {
            // The kernel breaks off when a signal arrives meanwhile.
            Err(error) if error.errno() == libc::EINTR => {}
            other => break step("create a VM", other)?,
        }
    };
    step(
        "place its task state segment",
        vm.set_tss_address(platform::KVM_TSS_ADDRESS),
    )?;
    step("create interrupt controllers", vm.create_irq_chip())?;
    Ok(vm)
}

/// The place of the window's virtio-mem device, if it has one.
fn mem_device(layout: &Layout) -> Vec<MmioDevice> {
    layout
        .window
        .iter()
        .filter(|_| layout.hotplug == Hotplug::VirtioMem)
        .map(|_| MmioDevice {
            address: platform::MMIO_BASE,
            gsi: platform::MMIO_FIRST_GSI,
        })
        .collect()
}

fn interrupt(vm: &VmFd, gsi: u32) -> Result<Arc<dyn InterruptLine>, BuildError> {
    let event = host("make an event descriptor", EventFd::new(EFD_NONBLOCK))?;
    step("connect an interrupt", vm.register_irqfd(&event, gsi))?;
    Ok(Arc::new(IrqFd(event)))
}

/// Puts a device on the bus; its queue notifications go to the event loop
/// without leaving the kernel.
fn connect(
    vm: &VmFd,
    bus: &mut Bus,
    place: MmioDevice,
    device: &VirtioMem,
    queue_notify: &EventFd,
) -> Result<(), BuildError> {
    let address = u64::from(place.address);
    step(
        "watch a device's notifications",
        vm.register_ioevent(
            queue_notify,
            &IoEventAddress::Mmio(address + QUEUE_NOTIFY),
            NoDatamatch,
        ),
    )?;
    bus.add_mmio(
        address,
        u64::from(platform::MMIO_DEVICE_BYTES),
        device.bus_device(),
    );
    Ok(())
}

/// Puts the registers of memory devices on the bus.
fn acpi_device(
    vm: &Arc<VmFd>,
    bus: &mut Bus,
    ram: &GuestRam,
    top: &TopArea,
    wake: &Arc<dyn OwnerWake>,
) -> HotplugDevice {
    let device = AcpiMem::new(
        top.lmbs,
        Arc::new(GuestStatusTable {
            ram: ram.clone(),
            address: top.status_table,
        }),
        Arc::new(IrqLevel {
            vm: Arc::clone(vm),
            gsi: platform::ACPI_MEM_GSI,
        }),
        Arc::clone(wake),
        stamp,
    );
    bus.add_io(
        platform::ACPI_MEM_PORT,
        acpi_mem::PORT_COUNT,
        device.bus_device(),
    );
    HotplugDevice::Acpi(device)
}

fn window(
    vm: &Arc<VmFd>,
    layout: &Layout,
    memory: HostRam,
    first_slot: u32,
    device: HotplugDevice,
    sandbox: &Sandbox,
) -> Result<WindowParts, BuildError> {
    let effects = memory
        .window
        .and_then(|memory| KvmWindow::new(Arc::clone(vm), memory, layout, first_slot));
    let (Some(effects), Some(access)) = (effects, memory.access) else {
        return Err(BuildError::Host {
            what: "set up the hotplug window",
            source: io::Error::other("the layout has a window and its memory has none"),
        });
    };
    Ok(WindowParts {
        device,
        ram: memory.guest,
        access,
        effects: Box::new(effects),
        sandbox: sandbox.clone(),
    })
}

fn create_vcpus(kvm: &Kvm, vm: &VmFd, cpus: u32, entry: Entry) -> Result<Vec<VcpuFd>, BuildError> {
    let supported = step(
        "tell its CPUID",
        kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES),
    )?;
    (0..cpus)
        .map(|id| {
            let vcpu = step("create a vCPU", vm.create_vcpu(u64::from(id)))?;
            let cpuid = cpuid::for_vcpu(&supported, id, cpus);
            step("set a vCPU's CPUID", vcpu.set_cpuid2(&cpuid))?;
            step("set a vCPU's MSRs", regs::set_msrs(&vcpu))?;
            step("set a vCPU's interrupt pins", regs::set_lapic_pins(&vcpu))?;
            if id == 0 {
                step(
                    "set the boot vCPU's registers",
                    regs::set_boot_vcpu(&vcpu, entry),
                )?;
            }
            Ok(vcpu)
        })
        .collect()
}
