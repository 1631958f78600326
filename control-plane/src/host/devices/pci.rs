//! Accelerators on the PCI bus that no driver speaks for.

use std::fs;
use std::path::Path;

use lifeboat_engines::host::{Device, Vendor};

/// Display controllers, and processing accelerators.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// One entry for each device of a maker.
pub fn without_driver(root: &Path, vendor: Vendor) -> Vec<Device> {
    let (id, name, cure) = match vendor {
        Vendor::Nvidia => ("0x10de", "NVIDIA device", "its driver (libnvidia-ml.so.1 and the kernel module) is not there"),
        Vendor::Amd => ("0x1002", "AMD device", "the amdgpu kernel driver's compute interface (/sys/class/kfd) is not there"),
        Vendor::Intel | Vendor::Apple | Vendor::Other => return Vec::new(),
    };
    let entries = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let read = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default().trim().to_owned();
    let mut found: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| read(path, "vendor") == id && CLASSES.iter().any(|class| read(path, "class").starts_with(class)))
        .map(|path| read(&path, "device"))
        .collect();
    found.sort();
    let device = |number: String| Device {
        vendor,
        name: format!("{name} {}", number.trim_start_matches("0x")),
        memory_total_bytes: 0,
        memory_free_bytes: 0,
        driver: None,
        architecture: None,
        unreachable: Some(cure.into()),
    };
    found.into_iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accelerators_of_the_maker_are_told_of() {
        let root = tempfile::tempdir().unwrap();
        for (slot, vendor, class, device) in [
            ("0000:01:00.0", "0x10de", "0x030000", "0x2684"),
            ("0000:01:00.1", "0x10de", "0x040300", "0x22ba"),
            ("0000:02:00.0", "0x10de", "0x030200", "0x2335"),
            ("0000:03:00.0", "0x1002", "0x120000", "0x74a1"),
            ("0000:00:02.0", "0x8086", "0x030000", "0xa7a0"),
        ] {
            let folder = root.path().join("sys/bus/pci/devices").join(slot);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in [("vendor", vendor), ("class", class), ("device", device)] {
                fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
        }
        let names = |vendor| without_driver(root.path(), vendor).into_iter().map(|device| device.name).collect::<Vec<_>>();
        assert_eq!(names(Vendor::Nvidia), ["NVIDIA device 2335", "NVIDIA device 2684"]);
        assert_eq!(names(Vendor::Amd), ["AMD device 74a1"]);
        assert_eq!(names(Vendor::Intel), Vec::<String>::new());
        assert!(without_driver(root.path(), Vendor::Amd)[0].unreachable.is_some());
    }
}
