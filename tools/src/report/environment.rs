//! What a table must print beside its figures: VMM, kernel, command line,
//! host and revision, each combination once, by a letter.

use super::figure::Unit;
use super::group::{Group, distinct};
use super::table::Table;
use crate::bench::sample::{Clock, Host};
use crate::units::format_size;

/// All combinations of a report, in the order in which they appear.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Environments {
    all: Vec<Environment>,
}

#[derive(Clone, Debug, PartialEq)]
struct Environment {
    vmm: String,
    vmm_version: String,
    hotplug: String,
    kernel: String,
    kernel_entry: String,
    cmdline: String,
    hugepages: String,
    host: Host,
    revisions: Vec<String>,
}

impl Environment {
    fn of(group: &Group) -> Self {
        let config = &group.config;
        Self {
            vmm: config.vmm.clone(),
            vmm_version: config.vmm_version.clone(),
            hotplug: config.hotplug.clone(),
            kernel: config.kernel.clone(),
            kernel_entry: config.kernel_entry.clone(),
            cmdline: config.cmdline.clone(),
            hugepages: config.hugepages.clone(),
            host: group.host.clone(),
            revisions: Vec::new(),
        }
    }

    fn same(&self, other: &Self) -> bool {
        Self {
            revisions: Vec::new(),
            ..self.clone()
        } == *other
    }

    fn sentence(&self) -> String {
        let clock = match self.host.clock {
            Clock::Instructions => "instruction clock",
            Clock::Wall => "wall clock",
        };
        let revisions = match self.revisions.as_slice() {
            [one] => format!("revision {one}"),
            several => format!("revisions {} (mixed)", several.join(", ")),
        };
        // Said on the command line, and then the guest's agent does so.
        let marks = if self.cmdline.contains("lmb.marks=console") {
            ", stamps seen on the console"
        } else {
            ""
        };
        format!(
            "{} {}, {}, host pages {}{marks}; guest kernel {} ({} entry), command line `{}`; host: {}, \
             {clock}, Linux {}, {}, {}; {revisions}.",
            self.vmm,
            self.vmm_version,
            self.hotplug,
            self.hugepages,
            self.kernel,
            self.kernel_entry,
            self.cmdline,
            self.host.kind,
            self.host.kernel,
            super::plural(u64::from(self.host.cpus), "CPU"),
            format_size(self.host.memory_bytes),
        )
    }
}

impl Environments {
    /// Those of a report's groups.
    #[must_use]
    pub fn of(groups: &[Group]) -> Self {
        let mut all: Vec<Environment> = Vec::new();
        for group in groups {
            let new = Environment::of(group);
            let index = all.iter().position(|known| known.same(&new));
            let index = index.unwrap_or_else(|| {
                all.push(new);
                all.len().saturating_sub(1)
            });
            if let Some(known) = all.get_mut(index) {
                let both = known.revisions.iter().chain(&group.revisions);
                known.revisions = distinct(both.map(String::as_str));
            }
        }
        Self { all }
    }

    fn index(&self, group: &Group) -> Option<usize> {
        let wanted = Environment::of(group);
        self.all.iter().position(|known| known.same(&wanted))
    }

    /// The letter of a group's: `a` to `z`, then `aa` and so on.
    #[must_use]
    pub fn letter(&self, group: &Group) -> String {
        self.index(group).map_or_else(|| "?".to_owned(), letters)
    }

    /// Puts the configurations of `groups` below `table`, and what their units
    /// mean.
    pub fn beside(&self, table: &mut Table, groups: &[&Group]) {
        let mut used: Vec<usize> = groups.iter().filter_map(|g| self.index(g)).collect();
        used.sort_unstable();
        used.dedup();
        for index in used {
            if let Some(environment) = self.all.get(index) {
                let letter = letters(index);
                table
                    .notes
                    .push(format!("conf. {letter}: {}", environment.sentence()));
            }
        }
        let any = |unit| groups.iter().any(|group| group.unit == unit);
        if any(Unit::Instructions) {
            table.notes.push(
                "instr: instructions of the virtual KVM host's one CPU, with the time waited \
                 counted at 1 ns each; no time of real hardware. executed and waited add up to \
                 the figure."
                    .to_owned(),
            );
        }
        if any(Unit::EmulatedSeconds) {
            table.notes.push(
                "emulated s: wall clock of the virtual KVM host, which depends on how busy the \
                 machine is; no time of real hardware."
                    .to_owned(),
            );
        }
    }
}

fn letters(index: usize) -> String {
    const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
    let mut rest = index;
    let mut text = String::new();
    loop {
        text.insert(0, char::from(LETTERS[rest % 26]));
        match (rest / 26).checked_sub(1) {
            Some(next) => rest = next,
            None => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::group::group;
    use crate::report::testing::{Boot, MIB, native_host};

    #[test]
    fn sizes_share_an_environment_and_kernels_do_not() {
        let mut samples = Boot::default().samples(2);
        samples.extend(
            Boot {
                lmb: 512 * MIB,
                ..Boot::default()
            }
            .samples(2),
        );
        let other = Boot {
            edit: |config| config.kernel = "6.12".to_owned(),
            ..Boot::default()
        };
        samples.extend(other.samples(1));
        let groups = group(&samples);
        let environments = Environments::of(&groups);
        let letters: Vec<String> = groups.iter().map(|g| environments.letter(g)).collect();
        assert_eq!(letters, ["a", "a", "b"]);
    }

    #[test]
    fn the_sentence_says_what_figures_depend_on() {
        let mut samples = Boot {
            host: native_host(),
            ..Boot::default()
        }
        .samples(2);
        samples[1].revision = "fff-dirty".to_owned();
        let groups = group(&samples);
        let mut table = Table::default();
        Environments::of(&groups).beside(&mut table, &groups.iter().collect::<Vec<_>>());
        assert_eq!(
            table.notes,
            [
                "conf. a: lmb-vmm 0.1.0, virtio-mem, host pages thp; guest kernel \
              6.1.0-18-cloud-amd64 (elf entry), command line `console=ttyS0 quiet \
              memhp_default_state=online_movable`; host: native KVM, wall clock, Linux 6.12.0, \
              16 CPUs, 256 GiB; revisions 713d416, fff-dirty (mixed)."
            ]
        );
    }

    #[test]
    fn stamps_from_the_console_are_called_so() {
        let mut samples = Boot::default().samples(1);
        samples[0].config.cmdline.push_str(" lmb.marks=console");
        let groups = group(&samples);
        let mut table = Table::default();
        Environments::of(&groups).beside(&mut table, &groups.iter().collect::<Vec<_>>());
        let words = "host pages thp, stamps seen on the console; guest";
        assert!(table.notes[0].contains(words), "{:?}", table.notes);
    }

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!(
            (letters(0), letters(25), letters(26), letters(701)),
            ("a".into(), "z".into(), "aa".into(), "zz".into())
        );
    }
}
