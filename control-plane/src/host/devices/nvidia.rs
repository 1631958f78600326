//! NVIDIA devices, as the driver's management library tells.
//!
//! The library is loaded only where something of NVIDIA is to be seen: loading it costs memory and time, and wakes the
//! device.

use std::path::Path;

use lifeboat_engines::host::{Device, Vendor};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use rustix::fs::Access;

/// Traces of a driver or of a device.
const TRACES: [&str; 5] = ["proc/driver/nvidia", "sys/module/nvidia", "dev/nvidiactl", "dev/nvidia0", "dev/dxg"];

/// Whether it is worth asking.
pub fn may_be_here(root: &Path) -> bool {
    TRACES.iter().any(|trace| root.join(trace).exists())
}

/// A device that nothing can be told of but why it cannot be used.
pub fn unreachable(reason: String) -> Device {
    Device {
        vendor: Vendor::Nvidia,
        name: "NVIDIA device".into(),
        memory_total_bytes: 0,
        memory_free_bytes: 0,
        driver: None,
        architecture: None,
        unreachable: Some(reason),
    }
}

/// All devices. May take as long as the driver takes.
pub fn devices(root: &Path) -> Vec<Device> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        // On WSL the trace alone means nothing: the machine may have a device of another maker.
        Err(NvmlError::LibloadingError(_)) if !root.join("proc/driver/nvidia").exists() => return Vec::new(),
        Err(error) => return vec![unreachable(reason(&error))],
    };
    let driver = nvml.sys_driver_version().ok();
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return vec![unreachable(reason(&error))],
    };
    (0..count).map(|index| Device { driver: driver.clone(), ..device(root, &nvml, index) }).collect()
}

fn device(root: &Path, nvml: &Nvml, index: u32) -> Device {
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => return unreachable(reason(&error)),
    };
    // Devices that share the host's memory do not tell of their own.
    let memory = device.memory_info().ok();
    Device {
        vendor: Vendor::Nvidia,
        name: device.name().unwrap_or_else(|_| "NVIDIA device".into()),
        memory_total_bytes: memory.as_ref().map_or(0, |memory| memory.total),
        memory_free_bytes: memory.as_ref().map_or(0, |memory| memory.free),
        driver: None,
        architecture: device.cuda_compute_capability().ok().map(|capability| format!("{}.{}", capability.major, capability.minor)),
        unreachable: missing_node(root),
    }
}

/// Programs compute through this file; containers often lack it, and then the driver answers and nothing runs.
fn missing_node(root: &Path) -> Option<String> {
    let node = root.join("dev/nvidia-uvm");
    if root.join("dev/dxg").exists() {
        return None;
    }
    rustix::fs::access(&node, Access::READ_OK | Access::WRITE_OK).err().map(|error| format!("{} cannot be opened: {error}", node.display()))
}

fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "the kernel module is there, but its library libnvidia-ml.so.1 cannot be loaded".into(),
        NvmlError::LibRmVersionMismatch => {
            "the driver's library and kernel module have different versions; reboot after a driver update".into()
        }
        NvmlError::DriverNotLoaded => "the driver is not loaded".into(),
        NvmlError::NoPermission => "this user may not use the device".into(),
        error => format!("the driver says: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_asked_only_where_something_points_to_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(!may_be_here(root.path()));
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        assert!(may_be_here(root.path()));
    }

    #[test]
    fn a_container_without_the_compute_node_is_told_so() {
        let root = tempfile::tempdir().unwrap();
        assert!(missing_node(root.path()).is_some_and(|reason| reason.contains("dev/nvidia-uvm")));
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(missing_node(root.path()), None);
    }
}
