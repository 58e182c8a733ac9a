//! Whether a guest's kernel log is clean: no warning or error that another
//! good VMM's guest does not show as well.

/// Messages of level warning and above that are no fault of the VMM: text that
/// they contain, and why.
const KNOWN: [(&str, &str); 0] = [];

/// The last level that counts: 4 is a warning (include/linux/kern_levels.h).
const WARNING: u32 = 4;

/// The lines of `dmesg -r` that are warnings or worse and not known.
pub(crate) fn complaints(raw: &str) -> Vec<String> {
    raw.lines()
        .filter(|line| level(line).is_some_and(|level| level <= WARNING))
        .filter(|line| !KNOWN.iter().any(|(text, _)| line.contains(text)))
        .map(str::to_owned)
        .collect()
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
}
