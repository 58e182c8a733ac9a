//! The sweeps whose results are kept: each an `lmb bench` command with what it
//! is for. Those that answer most come first, so that a run that is broken off
//! leaves a useful set.
//!
//! All are without warm-up: where there is none, `lmb bench` boots the first
//! guest of a virtual host once for nothing. By the instruction clock repeats
//! differ by some millionths, so that two or three show the spread.

/// What a report is about: its sweeps are drawn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// Name of its files.
    pub(super) name: &'static str,
    /// Its title.
    pub(super) title: &'static str,
}

/// Topics, in the index's order.
pub(super) const TOPICS: [Topic; 7] = [
    Topic {
        name: "boot",
        title: "Boot",
    },
    Topic {
        name: "dlpar",
        title: "Adding and removing 32 GiB",
    },
    Topic {
        name: "acpi",
        title: "Each LMB an ACPI memory device",
    },
    Topic {
        name: "loads",
        title: "Adding and removing under load",
    },
    Topic {
        name: "vmms",
        title: "Other VMMs",
    },
    Topic {
        name: "costs",
        title: "One quantity varied at a time",
    },
    Topic {
        name: "causes",
        title: "Why it is so",
    },
];

/// A sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    /// Name of its file of raw samples.
    pub(super) name: &'static str,
    /// Name of its topic.
    pub(super) topic: &'static str,
    /// What it shows.
    pub(super) purpose: &'static str,
    /// Arguments of `lmb bench`, by words.
    arguments: &'static str,
    /// Words behind the stock guest's command line.
    cmdline: &'static str,
    /// Minutes it took on two cores in the virtual host.
    pub(super) minutes: u32,
}

/// lmb-vmm's own command line for guests.
const STOCK_CMDLINE: &str = "console=ttyS0 quiet memhp_default_state=online_movable";

impl Sweep {
    /// Arguments of `lmb bench`.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> = self.arguments.split_whitespace().map(Into::into).collect();
        if !self.cmdline.is_empty() {
            all.push("--cmdline".to_owned());
            all.push(format!("{STOCK_CMDLINE} {}", self.cmdline));
        }
        all.extend(["--warm-up".to_owned(), "0".to_owned()]);
        all
    }

    /// The same as a line for people, to be pasted into a shell.
    pub(super) fn line(&self) -> String {
        let words: Vec<String> = self
            .arguments()
            .into_iter()
            .map(|word| {
                if word.contains(' ') {
                    format!("'{word}'")
                } else {
                    word
                }
            })
            .collect();
        format!("lmb bench {}", words.join(" "))
    }
}

/// A sweep with the stock command line.
const fn stock(
    name: &'static str,
    topic: &'static str,
    minutes: u32,
    arguments: &'static str,
    purpose: &'static str,
) -> Sweep {
    Sweep {
        name,
        topic,
        purpose,
        arguments,
        cmdline: "",
        minutes,
    }
}

/// The topic whose models need the sweeps of the picture too.
pub(super) const MODELS: &str = "costs";

/// Sweeps of the picture of boot, add and remove.
pub(super) const MAIN: [&str; 3] = ["boot", "dlpar-follow", "dlpar-fixed"];

/// All sweeps, in the order in which they are measured.
pub(super) const SWEEPS: [Sweep; 25] = [
    stock(
        "boot",
        "boot",
        8,
        "boot --memory 64G --lmb-size 128M,256M,512M,1G,2G,4G --guest-block-size follow,2G \
         --rounds 3",
        "Boot with 64 GiB of RAM, the guest's memory block following the LMB or fixed at 2 GiB",
    ),
    stock(
        "dlpar-follow",
        "dlpar",
        30,
        "dlpar --amount 32G --memory 4G --lmb-size 128M,256M,512M,1G,2G,4G --steps 3 --rounds 2",
        "Add, remove and add 32 GiB in an idle guest; its memory block follows the LMB",
    ),
    stock(
        "dlpar-fixed",
        "dlpar",
        30,
        "dlpar --amount 32G --memory 4G --lmb-size 128M,256M,512M,1G,2G,4G \
         --guest-block-size 2G --steps 3 --rounds 1",
        "The same with a guest memory block of 2 GiB",
    ),
    stock(
        "acpi-dlpar",
        "acpi",
        10,
        "dlpar --hotplug acpi --amount 32G --memory 4G \
         --lmb-size 128M,256M,512M,1G,2G,4G --steps 3 --rounds 2",
        "Add, remove and add 32 GiB where each LMB is an ACPI memory device",
    ),
    stock(
        "acpi-beside",
        "acpi",
        8,
        "dlpar --hotplug acpi,virtio-mem --amount 4G --memory 4G --lmb-size 128M,512M,2G \
         --rounds 2",
        "Add and remove 4 GiB twice, by ACPI devices and by virtio-mem",
    ),
    stock(
        "acpi-loads",
        "acpi",
        6,
        "dlpar --hotplug acpi --amount 2G --memory 4G --lmb-size 128M,512M,2G \
         --load none,touched,dirtying,pinned --timeout 20s --rounds 2",
        "Remove 2 GiB, of which a load holds 512 MiB, from ACPI devices",
    ),
    stock(
        "acpi-empty",
        "acpi",
        5,
        "boot --hotplug acpi,virtio-mem --memory 1G --lmb-size 256M \
         --empty-lmbs 0,256,1024,4096 --rounds 2",
        "Boot with empty LMBs, which are devices by ACPI and mere numbers by virtio-mem",
    ),
    Sweep {
        name: "acpi-memmap",
        topic: "acpi",
        minutes: 5,
        cmdline: "memory_hotplug.memmap_on_memory=1",
        arguments: "dlpar --hotplug acpi --amount 32G --memory 4G \
                    --lmb-size 128M,256M,512M,1G,2G,4G --steps 3 --rounds 2",
        purpose: "Add, remove and add 32 GiB of ACPI devices whose blocks hold their own page \
                  structures (not the stock command line)",
    },
    stock(
        "boot-plugged",
        "boot",
        8,
        "boot --memory 64G --given plugged --boot-memory 4G \
         --lmb-size 128M,256M,512M,1G,2G,4G --rounds 2",
        "Boot with 4 GiB of RAM while the guest plugs 60 GiB",
    ),
    stock(
        "loads",
        "loads",
        15,
        "dlpar --amount 2G --memory 4G --lmb-size 128M,512M,2G \
         --load none,touched,dirtying,pinned --timeout 20s --rounds 2",
        "Remove 2 GiB, of which a load holds 512 MiB, and add them again",
    ),
    stock(
        "loads-sub-block",
        "loads",
        2,
        "dlpar --amount 2G --memory 4G --lmb-size 128M --guest-block-size 2G \
         --load touched,pinned --timeout 20s --rounds 1",
        "The same with LMBs of 128 MiB in a guest memory block of 2 GiB",
    ),
    stock(
        "vmms-boot",
        "vmms",
        5,
        "boot --memory 16G --lmb-size 128M --vmm lmb-vmm,qemu-pc,qemu-microvm \
         --kernel-entry elf,bzimage --rounds 3",
        "Boot with 16 GiB of RAM: lmb-vmm by both of its kernel entries, QEMU's pc and microvm",
    ),
    stock(
        "vmms-dlpar",
        "vmms",
        15,
        "dlpar --amount 4G --memory 4G --lmb-size 2M,128M,512M,1G --guest-block-size 128M \
         --vmm lmb-vmm,qemu-pc --steps 3 --rounds 1",
        "Add, remove and add 4 GiB over the device's block sizes; the guest's memory block is \
         128 MiB, as QEMU's guests have it (QEMU 7.2 places no device with larger blocks)",
    ),
    stock(
        "costs-blocks",
        "costs",
        5,
        "dlpar --amount 4G --memory 4G --lmb-size 4G --guest-block-size 128M,512M,2G \
         --slot-size 4G --steps 3 --rounds 2",
        "More and fewer guest memory blocks; one request, one slot",
    ),
    stock(
        "costs-requests",
        "costs",
        5,
        "dlpar --amount 4G --memory 4G --lmb-size 128M,512M,2G --guest-block-size 128M \
         --slot-size 4G --steps 3 --rounds 2",
        "More and fewer requests; 32 guest memory blocks, one slot",
    ),
    stock(
        "costs-slots",
        "costs",
        5,
        "dlpar --amount 4G --memory 4G --lmb-size 128M --guest-block-size 128M \
         --slot-size 128M,1G --steps 3 --rounds 2",
        "More and fewer KVM slots; 32 guest memory blocks, 32 requests",
    ),
    stock(
        "costs-amount",
        "costs",
        8,
        "dlpar --amount 1G,2G,8G --memory 4G --lmb-size 512M --guest-block-size 128M \
         --slot-size 4G --steps 3 --rounds 2",
        "More and less memory",
    ),
    stock(
        "costs-sub-block",
        "costs",
        8,
        "dlpar --amount 2G,4G,8G --memory 4G --lmb-size 128M --guest-block-size 256M,512M,2G \
         --slot-size 8G --steps 3 --rounds 1",
        "Guest memory blocks of several LMBs (the driver's sub-block mode), more and fewer",
    ),
    stock(
        "costs-boot",
        "costs",
        5,
        "boot --memory 16G,32G --lmb-size 128M,512M,2G --rounds 2",
        "Boot with less RAM, which tells blocks from GiB",
    ),
    stock(
        "boot-kernels",
        "boot",
        8,
        "boot --memory 64G --lmb-size 128M,512M,4G \
         --kernel-package linux-image-6.12-cloud-amd64,linux-image-amd64 --rounds 3",
        "Boot of two further kernels: Debian's 6.12 cloud kernel and the generic 6.1",
    ),
    stock(
        "dlpar-kernels",
        "dlpar",
        10,
        "dlpar --amount 4G --memory 4G --lmb-size 128M,512M,4G \
         --kernel-package linux-image-cloud-amd64,linux-image-6.12-cloud-amd64,linux-image-amd64 \
         --steps 3 --rounds 1",
        "Add, remove and add 4 GiB: three kernels",
    ),
    stock(
        "boot-cpus",
        "boot",
        4,
        "boot --memory 64G --lmb-size 128M,512M,4G --cpus 2,4 --rounds 2",
        "Boot with 2 and 4 vCPUs, which share the virtual host's one CPU",
    ),
    Sweep {
        name: "boot-notests",
        topic: "causes",
        minutes: 3,
        cmdline: "cryptomgr.notests",
        arguments: "boot --memory 64G --lmb-size 128M,512M,4G \
                    --kernel-package linux-image-6.12-cloud-amd64 --rounds 3",
        purpose: "Boot of 6.12 without its ciphers' self-tests, whose scheduling is what differs \
                  from boot to boot (not the stock command line)",
    },
    Sweep {
        name: "no-zeroing",
        topic: "causes",
        minutes: 5,
        cmdline: "init_on_alloc=0",
        arguments: "dlpar --amount 4G --memory 4G --lmb-size 128M,512M,4G --guest-block-size \
                    follow,2G --steps 3 --rounds 2",
        purpose: "Add, remove and add 4 GiB where the guest's kernel does not zero what is \
                  allocated (not the stock command line)",
    },
    Sweep {
        name: "waits",
        topic: "causes",
        minutes: 3,
        cmdline: "rcupdate.rcu_expedited=1",
        arguments: "dlpar --amount 4G --memory 4G --lmb-size 128M,512M,2G --steps 3 --rounds 1",
        purpose: "Add, remove and add 4 GiB where the guest's kernel hurries its grace periods: \
                  whether removals wait for them (not the stock command line)",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_used_once_and_topics_are_there() {
        for (number, sweep) in SWEEPS.iter().enumerate() {
            assert!(
                SWEEPS[..number]
                    .iter()
                    .all(|other| other.name != sweep.name),
                "{}",
                sweep.name
            );
            assert!(
                TOPICS.iter().any(|topic| topic.name == sweep.topic),
                "{}",
                sweep.name
            );
        }
        assert!(
            MAIN.iter()
                .all(|name| SWEEPS.iter().any(|sweep| sweep.name == *name))
        );
        for topic in TOPICS {
            assert!(SWEEPS.iter().any(|sweep| sweep.topic == topic.name));
        }
    }

    #[test]
    fn a_line_can_be_pasted_into_a_shell() {
        let sweep = SWEEPS.iter().find(|s| s.name == "no-zeroing").unwrap();
        let line = sweep.line();
        assert!(line.starts_with("lmb bench dlpar --amount 4G "));
        assert!(line.contains("--cmdline 'console=ttyS0 quiet"), "{line}");
        assert!(line.contains("init_on_alloc=0' --warm-up 0"), "{line}");
    }
}
