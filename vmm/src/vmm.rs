//! The event loop: the one thread that owns the VM.
//!
//! States: running → (guest or client asks for a reset) resetting → running;
//! running → (power off, signal, vCPU failure) ended. Everything arrives here
//! as a readable descriptor: the control socket and its connections, the
//! guest's queue notifications, ended effects, the devices' wake-up, standard
//! input, signals. Nothing here waits for the guest or for a client.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use kvm_ioctls::Kvm;
use lmb_devices::{OwnerWake, PowerRequest};
use lmb_memory::Layout;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::api::{ApiServer, Context, InterestChange, SocketError};
use crate::config::{SerialOption, VmConfig};
use crate::console::ConsoleInput;
use crate::control::{Control, kernel_info};
use crate::coordinator::{Coordinator, CoordinatorError, RequestError};
use crate::files::VmFiles;
use crate::machine::{BuildError, Machine};
use crate::protocol::VmState;
use crate::sandbox::{Sandbox, SandboxError};
use crate::signals;
use crate::timeline::{BootEvent, monotonic_ns};
use crate::vcpu::VcpuFailure;

/// Event data of the loop's own descriptors; the API's tokens lie above.
const WAKE: u32 = 0;
const QUEUE_NOTIFY: u32 = 1;
const EFFECT_DONE: u32 = 2;
const CONSOLE: u32 = 3;
const SIGNAL: u32 = 4;
const OUTPUT: u32 = 5;
const API_FIRST: u32 = 16;

/// Why a VM ended otherwise than by powering off.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// It could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The process could not be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A vCPU cannot go on.
    #[error("{0}")]
    Vcpu(#[from] VcpuFailure),
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The coordinator.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The memory requested from the start.
    #[error("--requested-memory: {0}")]
    Requested(#[from] RequestError),
    /// The event loop itself.
    #[error("the event loop failed: {0}")]
    Loop(#[from] event_manager::Error),
    /// A descriptor the loop needs.
    #[error("cannot {what}: {source}")]
    Host {
        /// What.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

fn host<T>(what: &'static str, result: io::Result<T>) -> Result<T, VmmError> {
    result.map_err(|source| VmmError::Host { what, source })
}

/// Devices' wake-up of the loop.
struct Wake(EventFd);

impl OwnerWake for Wake {
    fn wake(&self) {
        // A full counter is a wake-up that is pending already.
        let _ = self.0.write(1);
    }
}

/// The VM and everything that serves it. Dropped in this order: clients first,
/// then the window's effects, then the machine.
struct Vmm {
    api: Option<ApiServer>,
    coordinator: Coordinator,
    /// None only while a reset builds the next one.
    machine: Option<Machine>,
    control: Control,
    console: Option<ConsoleInput>,
    console_watched: bool,
    output_watched: Option<RawFd>,
    kvm: Kvm,
    config: VmConfig,
    layout: Layout,
    files: VmFiles,
    sandbox: Sandbox,
    wake: Arc<Wake>,
    effect_done: Arc<EventFd>,
    end: Option<Result<(), VmmError>>,
}

/// Checks what only the books can tell of a configuration: whether the memory
/// requested from the start is possible.
///
/// # Errors
/// When it is not.
pub fn check(config: &VmConfig, layout: &Layout) -> Result<(), VmmError> {
    if let Some(total) = config.requested_memory {
        Coordinator::new(layout, 0, Arc::new(event_fd()?)).request_at_start(total)?;
    }
    Ok(())
}

/// Builds the VM, runs it, and returns when it has ended.
///
/// # Errors
/// When it cannot be built, or ends by a failure.
pub fn run(
    kvm: Kvm,
    config: VmConfig,
    layout: Layout,
    process_start_ns: u64,
) -> Result<(), VmmError> {
    let mut manager = EventManager::<Vmm>::new()?;
    let vmm = Vmm::new(kvm, config, layout, process_start_ns)?;
    let id = manager.add_subscriber(vmm);
    let result = loop {
        let vmm = manager.subscriber_mut(id)?;
        if let Some(end) = vmm.end.take() {
            break end;
        }
        let timeout = vmm.timeout_ms();
        manager.run_with_timeout(timeout)?;
        let vmm = manager.subscriber_mut(id)?;
        let changes = vmm.on_time();
        // Asked for behind a reply that time made due.
        if vmm.control.asked.is_some() {
            vmm.wake.wake();
        }
        let mut ops = manager.event_ops(id)?;
        apply(&changes, &mut ops);
    };
    let vmm = manager.subscriber_mut(id)?;
    vmm.machine = None;
    vmm.coordinator.stop();
    // Clients that wait for an operation are told that it was aborted.
    vmm.on_time();
    result
}

impl Vmm {
    fn new(
        kvm: Kvm,
        config: VmConfig,
        layout: Layout,
        process_start_ns: u64,
    ) -> Result<Self, VmmError> {
        let wake = Arc::new(Wake(event_fd()?));
        // The socket comes first: a name in use is told before a VM exists.
        let api = config
            .api_socket
            .as_deref()
            .map(|path| ApiServer::bind(path, API_FIRST))
            .transpose()?;
        let device_wake: Arc<dyn OwnerWake> = Arc::clone(&wake) as _;
        let effect_done = Arc::new(event_fd()?);
        let mut coordinator = Coordinator::new(&layout, process_start_ns, Arc::clone(&effect_done));
        if let Some(total) = config.requested_memory {
            coordinator.request_at_start(total)?;
        }
        let files = VmFiles::open(&config)?;
        lmb_memory::open_host_views(layout.page_size);
        // No thread has been started, and nothing is opened from here on.
        let (sandbox, sandbox_info) = if config.sandbox {
            Sandbox::enter(config.api_socket.as_deref())?
        } else {
            Default::default()
        };
        let mut machine = Machine::build(&kvm, &config, &layout, &files, &sandbox, &device_wake)?;
        attach(&mut coordinator, &mut machine)?;
        // Until here a signal ends the process at once, also in the midst of
        // populating much memory.
        host("handle signals", signals::watch())?;
        let console = match config.serial {
            SerialOption::Stdio => Some(host("take over standard input", ConsoleInput::new())?),
            SerialOption::Off | SerialOption::File(_) => None,
        };
        let control = Control {
            state: VmState::Running,
            cpus: config.cpus,
            kernel: kernel_info(&config, &machine),
            asked: None,
            vcpu_exits: 0,
            sandbox: sandbox_info,
        };
        machine.start()?;
        let vmm = Self {
            api,
            coordinator,
            machine: Some(machine),
            control,
            console,
            console_watched: false,
            output_watched: None,
            kvm,
            config,
            layout,
            files,
            sandbox,
            wake,
            effect_done,
            end: None,
        };
        Ok(vmm)
    }

    /// Milliseconds until something is due, rounded up; -1 for never.
    fn timeout_ms(&self) -> i32 {
        let api = self.api.as_ref().and_then(ApiServer::next_deadline_ns);
        let due = [api, self.coordinator.next_deadline_ns()]
            .into_iter()
            .flatten()
            .min();
        due.map_or(-1, |due| {
            let left_ms = due.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
            i32::try_from(left_ms).unwrap_or(i32::MAX)
        })
    }

    /// What is due by time, and replies that became due by events.
    fn on_time(&mut self) -> Vec<InterestChange> {
        let now = monotonic_ns();
        self.coordinator.on_deadline(now);
        let Some(api) = self.api.as_mut() else {
            return Vec::new();
        };
        let mut context = Context {
            coordinator: &mut self.coordinator,
            vm: &mut self.control,
        };
        api.on_deadline(now, &mut context)
    }

    fn on_wake(&mut self, ops: &mut EventOps<'_>) {
        let Some(machine) = &self.machine else { return };
        while let Some(mark) = machine.marks.take_mark() {
            self.coordinator.on_mark(mark);
        }
        let failure = machine.shared().take_failure();
        let power = machine.power.take_request();
        self.coordinator.on_device_wake();
        self.deliver_input(ops);
        self.watch_output(ops);
        match failure {
            // How a kernel reboots that finds no other way (reboot=t).
            Some(VcpuFailure::Shutdown(_)) if self.guest_was_up() => {
                self.on_power(PowerRequest::Reset, ops);
            }
            Some(failure) => self.end_with(Err(failure.into())),
            None => {
                if let Some(request) = power.or_else(|| self.control.asked.take()) {
                    self.on_power(request, ops);
                }
            }
        }
    }

    /// Whether this boot got so far that a triple fault is a reboot and not a
    /// kernel that cannot start.
    fn guest_was_up(&self) -> bool {
        let boot = self.coordinator.boot().timeline();
        let windows = self.coordinator.memory_info().windows;
        boot.init_ns.is_some() || windows.iter().any(|window| window.driver_active)
    }

    fn on_power(&mut self, request: PowerRequest, ops: &mut EventOps<'_>) {
        match request {
            PowerRequest::Off => self.end_with(Ok(())),
            PowerRequest::Reset => {
                if let Err(error) = self.reset(ops) {
                    self.end_with(Err(error));
                }
            }
        }
    }

    fn end_with(&mut self, end: Result<(), VmmError>) {
        self.control.state = VmState::Stopped;
        self.end.get_or_insert(end);
    }

    /// Builds the machine anew. Sockets, requested size and the record of
    /// operations stay; plugged memory starts at none.
    fn reset(&mut self, ops: &mut EventOps<'_>) -> Result<(), VmmError> {
        let asked_ns = monotonic_ns();
        self.control.state = VmState::Resetting;
        if let Some(mut machine) = self.machine.take() {
            machine.stop();
            unwatch(&machine.queue_notify, QUEUE_NOTIFY, ops);
            self.unwatch_output(ops);
            // Its window goes with the coordinator's half, the rest here: the
            // next machine may need the same memory.
            self.coordinator.system_reset(asked_ns);
        }
        let device_wake: Arc<dyn OwnerWake> = Arc::clone(&self.wake) as _;
        let mut machine = Machine::build(
            &self.kvm,
            &self.config,
            &self.layout,
            &self.files,
            &self.sandbox,
            &device_wake,
        )?;
        attach(&mut self.coordinator, &mut machine)?;
        watch(&machine.queue_notify, QUEUE_NOTIFY, ops);
        machine.start()?;
        self.machine = Some(machine);
        self.control.state = VmState::Running;
        self.deliver_input(ops);
        Ok(())
    }

    fn on_console(&mut self, ops: &mut EventOps<'_>) {
        let Some(console) = self.console.as_mut() else {
            return;
        };
        match console.read() {
            Ok(true) => {}
            Ok(false) => self.close_console(ops),
            Err(error) => {
                tracing::warn!("console input ended: {error}");
                self.close_console(ops);
            }
        }
        self.deliver_input(ops);
    }

    fn close_console(&mut self, ops: &mut EventOps<'_>) {
        self.watch_console(false, ops);
        self.console = None;
    }

    fn deliver_input(&mut self, ops: &mut EventOps<'_>) {
        let (Some(console), Some(machine)) = (self.console.as_mut(), &self.machine) else {
            return;
        };
        console.deliver(&machine.serial);
        let wanted = console.wants_input();
        self.watch_console(wanted, ops);
    }

    fn watch_console(&mut self, wanted: bool, ops: &mut EventOps<'_>) {
        let Some(console) = &mut self.console else {
            return;
        };
        if wanted == self.console_watched || console.is_at_end() {
            return;
        }
        let events = Events::with_data_raw(console.fd(), CONSOLE, EventSet::IN);
        let done = if wanted {
            ops.add(events)
        } else {
            ops.remove(events)
        };
        match done {
            Ok(()) => self.console_watched = wanted,
            // epoll takes no regular files, which are always readable.
            Err(error) => {
                tracing::debug!("standard input is read at once: {error:?}");
                console.read_whole();
            }
        }
    }

    /// Takes over what the vCPUs note without a wake-up.
    fn look_at_vcpus(&mut self) {
        let Some(machine) = &self.machine else { return };
        self.control.vcpu_exits = machine.shared().exits();
        if let Some(stamp) = machine.shared().first_entry() {
            let boot = self.coordinator.boot_mut();
            boot.stamp(BootEvent::FirstEntry, stamp);
        }
    }

    /// Writes the output that waits, and waits for room while some is left.
    fn watch_output(&mut self, ops: &mut EventOps<'_>) {
        let Some(machine) = &self.machine else { return };
        machine.output.flush_pending();
        match (machine.output.waiting_fd(), self.output_watched) {
            (None, Some(_)) => self.unwatch_output(ops),
            (Some(fd), None) => {
                let events = Events::with_data_raw(fd, OUTPUT, EventSet::OUT);
                match ops.add(events) {
                    Ok(()) => self.output_watched = Some(fd),
                    Err(error) => tracing::warn!("output is not watched: {error:?}"),
                }
            }
            _ => {}
        }
    }

    fn unwatch_output(&mut self, ops: &mut EventOps<'_>) {
        let Some(fd) = self.output_watched.take() else {
            return;
        };
        let events = Events::with_data_raw(fd, OUTPUT, EventSet::OUT);
        if let Err(error) = ops.remove(events) {
            tracing::debug!("output was not watched: {error:?}");
        }
    }

    fn on_api(&mut self, token: u32, set: EventSet, ops: &mut EventOps<'_>) {
        self.look_at_vcpus();
        let Some(api) = self.api.as_mut() else { return };
        let mut context = Context {
            coordinator: &mut self.coordinator,
            vm: &mut self.control,
        };
        let changes = api.handle(token, set, &mut context);
        apply(&changes, ops);
        if let Some(request) = self.control.asked.take() {
            self.on_power(request, ops);
        }
    }
}

impl MutEventSubscriber for Vmm {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        watch(&self.wake.0, WAKE, ops);
        if let Some(machine) = &self.machine {
            watch(&machine.queue_notify, QUEUE_NOTIFY, ops);
        }
        watch(&self.effect_done, EFFECT_DONE, ops);
        if let Some(event) = signals::event() {
            watch(event, SIGNAL, ops);
        }
        if self.console.is_some() {
            self.watch_console(true, ops);
            self.deliver_input(ops);
        }
        if let Some(api) = &mut self.api {
            let changes = api.interests();
            apply(&changes, ops);
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        if self.end.is_some() {
            return;
        }
        match events.data() {
            WAKE => {
                drain(&self.wake.0);
                self.on_wake(ops);
            }
            QUEUE_NOTIFY => {
                if let Some(machine) = &self.machine {
                    drain(&machine.queue_notify);
                }
                self.coordinator.on_device_wake();
            }
            EFFECT_DONE => self.coordinator.on_effect_done(),
            CONSOLE => self.on_console(ops),
            SIGNAL => self.end_with(Ok(())),
            OUTPUT => self.watch_output(ops),
            token => self.on_api(token, events.event_set(), ops),
        }
    }
}

/// Hands the coordinator its part of a new machine.
fn attach(coordinator: &mut Coordinator, machine: &mut Machine) -> Result<(), VmmError> {
    let stamps = machine.stamps;
    let boot = coordinator.boot_mut();
    boot.stamp(BootEvent::KernelRead, stamps.kernel_read);
    boot.stamp(BootEvent::MemoryCreated, stamps.memory_created);
    boot.stamp(BootEvent::KernelLoaded, stamps.kernel_loaded);
    if let Some(window) = machine.window.take() {
        coordinator.attach(window)?;
    }
    coordinator.attach_marks(Arc::clone(&machine.marks));
    Ok(())
}

fn event_fd() -> Result<EventFd, VmmError> {
    host("make an event descriptor", EventFd::new(EFD_NONBLOCK))
}

fn drain(event: &EventFd) {
    // Nothing to read is a wake-up that was taken already.
    let _ = event.read();
}

fn watch(event: &EventFd, data: u32, ops: &mut EventOps<'_>) {
    if let Err(error) = ops.add(Events::with_data(event, data, EventSet::IN)) {
        tracing::error!("an event source is not watched: {error:?}");
    }
}

fn unwatch(event: &EventFd, data: u32, ops: &mut EventOps<'_>) {
    let events = Events::with_data_raw(event.as_raw_fd(), data, EventSet::IN);
    if let Err(error) = ops.remove(events) {
        tracing::debug!("an event source was not watched: {error:?}");
    }
}

fn apply(changes: &[InterestChange], ops: &mut EventOps<'_>) {
    for change in changes {
        if let Err(error) = change.apply(ops) {
            tracing::warn!("a connection is not watched: {error:?}");
        }
    }
}
