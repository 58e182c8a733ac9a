//! The system calls of each kind of thread.
//!
//! A thread has the filters of the thread that started it as well, so the main
//! thread's list holds what all others need. Each list ends in SIGSYS, see
//! [`super::trap`]; beside the lists there are a few calls which are answered
//! with ENOSYS, because the C library asks for them and gets along without.
//!
//! Numbers of the KVM requests: include/uapi/linux/kvm.h.

use std::collections::BTreeMap;
use std::mem::size_of;

use kvm_bindings as kvm;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

use super::{SandboxError, ThreadKind};
use crate::vcpu::kick_signal;

/// Of memory management, synchronization and the end of a thread.
const EVERY_THREAD: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    // How many CPUs there are, for the allocator's arenas.
    libc::SYS_sched_getaffinity,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Of a thread that starts, before it has narrowed itself, and of its starter.
const STARTING_THREADS: &[i64] = &[libc::SYS_set_robust_list, libc::SYS_rseq];

/// Of the main thread: the event loop, clients, and building a machine.
const MAIN: &[i64] = &[
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    // The control socket's listener and its connections; no socket is made.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    // Open files.
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    // The control socket's file, at the end.
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Of an effect worker.
const EFFECTS: &[i64] = &[libc::SYS_pread64, libc::SYS_fallocate];

/// Answered with ENOSYS: opening and looking up files, as the allocator
/// (/proc/sys/vm/overcommit_memory) and a panic's backtrace try, and clone3,
/// whose flags a filter cannot see, so that threads are made by clone.
const REFUSED: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_access,
];

/// Flags of an open that is more than a look.
const OPEN_CHANGES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

/// What every thread of this process shares with its starter (clone(2)).
const THREAD_FLAGS: i32 = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
/// What no thread of this process has.
const NEVER_CLONED: i32 = libc::CLONE_PTRACE
    | libc::CLONE_VFORK
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// A signal of glibc's own, whose handler it sets with the first thread.
const SIGSETXID: i32 = 33;

const KVMIO: u32 = 0xae;

const fn request(direction: u32, number: u32, size: usize) -> u64 {
    // A request's size has 14 bits, and no structure here is larger.
    #[allow(clippy::cast_possible_truncation)]
    ioctl_expr(direction, KVMIO, number, size as u32)
}

const fn plain(number: u32) -> u64 {
    request(_IOC_NONE, number, 0)
}

const fn reads<T>(number: u32) -> u64 {
    request(_IOC_READ, number, size_of::<T>())
}

const fn writes<T>(number: u32) -> u64 {
    request(_IOC_WRITE, number, size_of::<T>())
}

const KVM_SET_USER_MEMORY_REGION: u64 = writes::<kvm::kvm_userspace_memory_region>(0x46);
const KVM_IRQ_LINE: u64 = writes::<kvm::kvm_irq_level>(0x61);
const KVM_RUN: u64 = plain(0x80);
const KVM_GET_REGS: u64 = reads::<kvm::kvm_regs>(0x81);

/// Building a machine and its vCPUs.
const BUILD_REQUESTS: &[u64] = &[
    plain(0x01), // KVM_CREATE_VM
    plain(0x03), // KVM_CHECK_EXTENSION
    plain(0x04), // KVM_GET_VCPU_MMAP_SIZE
    request(
        _IOC_READ | _IOC_WRITE,
        0x05, // KVM_GET_SUPPORTED_CPUID
        size_of::<kvm::kvm_cpuid2>(),
    ),
    plain(0x41),                          // KVM_CREATE_VCPU
    plain(0x47),                          // KVM_SET_TSS_ADDR
    plain(0x60),                          // KVM_CREATE_IRQCHIP
    writes::<kvm::kvm_irqfd>(0x76),       // KVM_IRQFD
    writes::<kvm::kvm_ioeventfd>(0x79),   // KVM_IOEVENTFD
    writes::<kvm::kvm_regs>(0x82),        // KVM_SET_REGS
    reads::<kvm::kvm_sregs>(0x83),        // KVM_GET_SREGS
    writes::<kvm::kvm_sregs>(0x84),       // KVM_SET_SREGS
    writes::<kvm::kvm_msrs>(0x89),        // KVM_SET_MSRS
    writes::<kvm::kvm_fpu>(0x8d),         // KVM_SET_FPU
    reads::<kvm::kvm_lapic_state>(0x8e),  // KVM_GET_LAPIC
    writes::<kvm::kvm_lapic_state>(0x8f), // KVM_SET_LAPIC
    writes::<kvm::kvm_cpuid2>(0x90),      // KVM_SET_CPUID2
];

/// Terminal attributes of the console (by the newer requests from glibc 2.42
/// on), and a connection's mode.
const DESCRIPTOR_REQUESTS: &[u64] = &[
    libc::TCGETS,
    libc::TCSETS,
    libc::TCGETS2,
    libc::TCSETS2,
    libc::FIONBIO,
];

/// The lists while they are made: a call without rules is allowed whatever its
/// arguments.
struct List(BTreeMap<i64, Vec<SeccompRule>>);

type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

impl List {
    fn allow(&mut self, calls: &[i64]) {
        for &call in calls {
            self.0.insert(call, Vec::new());
        }
    }

    /// Allows a call if all of these hold, beside what allows it already.
    fn allow_if(&mut self, call: i64, conditions: &[Condition]) -> Result<(), BackendError> {
        let conditions = conditions
            .iter()
            .map(|(argument, width, op, value)| {
                SeccompCondition::new(*argument, width.clone(), op.clone(), *value)
            })
            .collect::<Result<_, _>>()?;
        let rule = SeccompRule::new(conditions)?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    /// Allows a call where one argument has one of these values.
    fn allow_each(&mut self, call: i64, argument: u8, values: &[u64]) -> Result<(), BackendError> {
        for &value in values {
            self.allow_if(call, &[(argument, Dword, Eq, value)])?;
        }
        Ok(())
    }

    /// Allows a call without these bits in an argument.
    fn allow_without(&mut self, call: i64, argument: u8, bits: i32) -> Result<(), BackendError> {
        self.allow_if(call, &[(argument, Qword, MaskedEq(unsigned(bits)), 0)])
    }

    fn allow_every_thread(&mut self) -> Result<(), BackendError> {
        self.allow(EVERY_THREAD);
        self.allow(REFUSED);
        self.allow_without(libc::SYS_open, 1, OPEN_CHANGES)?;
        self.allow_without(libc::SYS_openat, 2, OPEN_CHANGES)?;
        // Memory is never executable that was not when the program started.
        self.allow_without(libc::SYS_mmap, 2, libc::PROT_EXEC)?;
        self.allow_without(libc::SYS_mprotect, 2, libc::PROT_EXEC)?;
        // Debug builds look whether what they close is open.
        self.allow_each(libc::SYS_fcntl, 1, &[unsigned(libc::F_GETFD)])?;
        // Kicking a vCPU, and aborting.
        let pid = u64::from(std::process::id());
        self.allow_each(libc::SYS_tgkill, 0, &[pid])?;
        // A crash puts the default action back; SIGSYS stays as it is.
        let crashes = [libc::SIGABRT, libc::SIGBUS, libc::SIGSEGV].map(unsigned);
        self.allow_each(libc::SYS_rt_sigaction, 0, &crashes)
    }

    fn allow_starting_threads(&mut self) -> Result<(), BackendError> {
        self.allow(STARTING_THREADS);
        let mask = unsigned(THREAD_FLAGS | NEVER_CLONED);
        let flags = unsigned(THREAD_FLAGS);
        self.allow_if(libc::SYS_clone, &[(0, Qword, MaskedEq(mask), flags)])?;
        let settings = [libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS].map(unsigned);
        self.allow_each(libc::SYS_prctl, 0, &settings)?;
        // Narrowing a thread further.
        let narrow = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        self.allow_each(libc::SYS_seccomp, 0, &[narrow])
    }

    fn allow_requests(&mut self, requests: &[u64]) -> Result<(), BackendError> {
        self.allow_each(libc::SYS_ioctl, 1, requests)
    }

    fn allow_vcpu(&mut self) -> Result<(), BackendError> {
        self.allow_requests(&[KVM_RUN, KVM_GET_REGS, KVM_IRQ_LINE])
    }

    fn allow_effects(&mut self) -> Result<(), BackendError> {
        self.allow(EFFECTS);
        self.allow_requests(&[KVM_SET_USER_MEMORY_REGION])?;
        self.allow_starting_threads()
    }

    fn allow_main(&mut self) -> Result<(), BackendError> {
        self.allow(MAIN);
        self.allow_vcpu()?;
        self.allow_effects()?;
        self.allow_requests(BUILD_REQUESTS)?;
        self.allow_requests(DESCRIPTOR_REQUESTS)?;
        let commands = [libc::F_DUPFD_CLOEXEC, libc::F_GETFL, libc::F_SETFL].map(unsigned);
        self.allow_each(libc::SYS_fcntl, 1, &commands)?;
        let signals = [libc::SIGTERM, libc::SIGINT, kick_signal(), SIGSETXID].map(unsigned);
        self.allow_each(libc::SYS_rt_sigaction, 0, &signals)
    }
}

/// A constant of the system's headers as the kernel sees it in a register.
fn unsigned(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// The list of a kind of thread.
pub(super) fn compile(kind: ThreadKind) -> Result<BpfProgram, SandboxError> {
    let list = || {
        let mut list = List(BTreeMap::new());
        list.allow_every_thread()?;
        match kind {
            ThreadKind::Main => list.allow_main()?,
            ThreadKind::Vcpu => list.allow_vcpu()?,
            ThreadKind::Effects => list.allow_effects()?,
            ThreadKind::Prefault => {}
        }
        program(list, SeccompAction::Trap, SeccompAction::Allow)
    };
    list().map_err(failed)
}

/// The calls that are answered with ENOSYS, for all threads.
pub(super) fn compile_refusals() -> Result<BpfProgram, SandboxError> {
    let mut list = List(BTreeMap::new());
    list.allow(REFUSED);
    list.allow(&[libc::SYS_open, libc::SYS_openat]);
    let refuse = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    program(list, SeccompAction::Allow, refuse).map_err(failed)
}

fn program(
    list: List,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(list.0, otherwise, listed, TargetArch::x86_64)?.try_into()
}

fn failed(error: BackendError) -> SandboxError {
    SandboxError::new("compile its filters", error)
}
