//! Whether a guest's kernel log is clean: no warning or error that another
//! good VMM's guest does not show as well.

/// Messages of level warning and above that are no fault of the VMM: text that
/// they contain, and why. Of a warning with a backtrace any line may contain it.
const KNOWN: [(&str, &str); 6] = [
    (
        "XSAVE consistency problem",
        "QEMU's emulation of SVM does not intercept XSETBV, so the virtual host's KVM does not \
         learn the guest's XCR0 and leaves the size in CPUID leaf 0xD as it was",
    ),
    ("CPUID[0d, ", "the table behind the warning above"),
    (
        "clocksource: Long readout interval",
        "the emulator did not run the guest for a while",
    ),
    (
        "amd_pstate: the _CPC object is not present",
        "seen in QEMU's own guests: no VMM describes processor performance states",
    ),
    (
        "PCI: Fatal: No config space access function found",
        "the same, for a guest that is not told pci=off (as Firecracker tells its guests)",
    ),
    (
        "PCI: System does not support PCI",
        "true, and shown by every guest without PCI",
    ),
];

/// Start and end of a warning with a backtrace.
const TRACE: (&str, &str) = ("[ cut here ]", "[ end trace");

/// The last level that counts: 4 is a warning (include/linux/kern_levels.h).
const WARNING: u32 = 4;

/// The lines of `dmesg -r` that are warnings or worse and not known.
pub(crate) fn complaints(raw: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut trace: Option<Vec<&str>> = None;
    for line in raw.lines() {
        if line.contains(TRACE.0) {
            trace = Some(Vec::new());
        }
        match &mut trace {
            Some(lines) => {
                lines.push(line);
                if line.contains(TRACE.1) {
                    report(trace.take().unwrap_or_default(), &mut complaints);
                }
            }
            None => report(vec![line], &mut complaints),
        }
    }
    report(trace.unwrap_or_default(), &mut complaints);
    complaints
}

/// Adds what counts of a message of one or more lines.
fn report(lines: Vec<&str>, complaints: &mut Vec<String>) {
    let known = |line: &&str| KNOWN.iter().any(|(text, _)| line.contains(text));
    if !lines.iter().any(known) {
        let loud = |line: &&str| level(line).is_some_and(|level| level <= WARNING);
        complaints.extend(lines.into_iter().filter(loud).map(str::to_owned));
    }
}

/// The level of a line, without its facility.
fn level(line: &str) -> Option<u32> {
    let (number, _) = line.strip_prefix('<')?.split_once('>')?;
    Some(number.parse::<u32>().ok()? & 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_warnings_of_every_facility_and_leaves_the_rest() {
        let raw = "<6>[    0.1] fine\n<4>[    0.2] a warning\n<11>[    0.3] user error\n\
                   <30>[    0.4] daemon info\nno level\n";
        assert_eq!(
            complaints(raw),
            ["<4>[    0.2] a warning", "<11>[    0.3] user error"]
        );
    }

    #[test]
    fn a_known_trace_is_left_out_whole_and_another_is_not() {
        let trace = |what: &str| {
            format!(
                "<4>[ 0.1] ------------[ cut here ]------------\n<4>[ 0.1] {what}\n\
                 <4>[ 0.1] RIP: 0010:x\n<4>[ 0.1] ---[ end trace 0 ]---\n"
            )
        };
        let known = trace("XSAVE consistency problem: size 2696 != kernel_size 576");
        assert_eq!(complaints(&known), [""; 0]);
        let both = known + "<4>[ 0.2] alone\n" + &trace("list corruption");
        let found = complaints(&both);
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found[0].contains("alone") && found[2].contains("list corruption"));
        // One that never ends counts as well.
        assert_eq!(
            complaints("<4>[ 0.1] --[ cut here ]--\n<1>[ 0.1] BUG").len(),
            2
        );
    }
}
