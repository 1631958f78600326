//! Facts about the machine, as plain types. The control plane's `host` module measures them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::spec::Build;

/// Everything the catalog and the sizing need to know about this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostFacts {
    /// `linux`, `macos`, `windows` (Rust's `std::env::consts::OS`).
    pub os: String,
    /// `x86_64`, `aarch64`, … (Rust's `std::env::consts::ARCH`).
    pub arch: String,
    /// The C library.
    pub libc: Libc,
    /// Processors.
    pub cpu: CpuFacts,
    /// Memory.
    pub memory: MemoryFacts,
    /// Accelerators, reachable or not.
    pub devices: Vec<Device>,
    /// Tools a source of builds may need.
    pub tools: Tools,
}

impl HostFacts {
    /// This host with only the accelerators that `build` can drive: none for a CPU build, those of the right maker
    /// otherwise. Sizing on devices the build cannot use would promise memory that is not there.
    #[must_use]
    pub fn usable_by(&self, build: &Build) -> Self {
        let mut host = self.clone();
        host.devices.retain(|device| build.devices.iter().any(|name| drives(name, device.vendor)));
        host
    }

    /// Accelerators that are there and can be reached.
    pub fn reachable_devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.unreachable.is_none())
    }
}

/// Whether a llama.cpp device name (`CUDA0`) can stand for a device of this maker.
fn drives(name: &str, vendor: Vendor) -> bool {
    let backend = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_ascii_lowercase();
    match vendor {
        Vendor::Nvidia => matches!(backend.as_str(), "cuda" | "vulkan"),
        Vendor::Amd => matches!(backend.as_str(), "rocm" | "hip" | "vulkan"),
        Vendor::Intel => matches!(backend.as_str(), "sycl" | "vulkan" | "openvino" | "gpu"),
        Vendor::Apple => matches!(backend.as_str(), "metal" | "mtl"),
        Vendor::Other => matches!(backend.as_str(), "vulkan" | "opencl" | "gpuopencl"),
    }
}

/// The C library and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "family")]
pub enum Libc {
    /// GNU libc.
    Glibc {
        /// 2 in 2.36.
        major: u32,
        /// 36 in 2.36.
        minor: u32,
    },
    /// musl.
    Musl,
    /// None of these, or not known.
    Other,
}

/// Processors as this process may use them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CpuFacts {
    /// Brand string.
    pub model: String,
    /// Feature flags as /proc/cpuinfo spells them (`avx2`, `avx512f`, `asimddp`).
    pub features: BTreeSet<String>,
    /// Hardware threads this process may run on (affinity applied).
    pub logical: u32,
    /// Physical cores among those.
    pub physical: u32,
    /// Performance cores among the physical ones (all of them where cores are alike).
    pub performance: u32,
    /// CPU time limit of the control group, in cores.
    pub quota_cores: Option<f64>,
}

/// Memory as this process may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFacts {
    /// Physical memory.
    pub total_bytes: u64,
    /// What a new process could take without swapping, control group limit applied.
    pub available_bytes: u64,
    /// The control group's limit, where there is one.
    pub limit_bytes: Option<u64>,
    /// Where the numbers come from, for example `cgroup v1 /sys/fs/cgroup/memory/memory.limit_in_bytes`.
    pub source: String,
}

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Maker.
    pub vendor: Vendor,
    /// Marketing name.
    pub name: String,
    /// Memory of its own; 0 where it shares the host's.
    pub memory_total_bytes: u64,
    /// Free now.
    pub memory_free_bytes: u64,
    /// Driver version, as its maker writes it.
    pub driver: Option<String>,
    /// `8.9` for NVIDIA, `gfx1100` for AMD.
    pub architecture: Option<String>,
    /// Why it cannot be used, where it cannot: present but unreachable is a state, not an error.
    pub unreachable: Option<String>,
}

/// Makers of accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Apple.
    Apple,
    /// Anybody else.
    Other,
}

/// Tools found on the search path, each by its version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Tools {
    /// Python 3 that has pip.
    pub python: Option<String>,
    /// cmake.
    pub cmake: Option<String>,
    /// ninja.
    pub ninja: Option<String>,
    /// A C++ compiler.
    pub cxx: Option<String>,
}
