//! Whether a host has what a build needs, and the reason where it has not.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Needs, Source};
use crate::host::{CpuFacts, Device, HostFacts, Libc, Vendor};

/// A version of two numbers: `2.39`, `12.8`. Further numbers are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Version {
    /// 12 in 12.8.
    pub major: u32,
    /// 8 in 12.8.
    pub minor: u32,
}

impl Version {
    /// Reads `12`, `12.8` or `12.8.1`; anything else is none.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u32>().ok()).flatten();
        let mut numbers = text.split('.').map(digits);
        let major = numbers.next()??;
        let minor = numbers.next().unwrap_or(Some(0))?;
        numbers.all(|number| number.is_some()).then_some(Self { major, minor })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{text}` is no version"))
    }
}

/// What a build computes on beside the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    Cuda,
    Rocm,
    Vulkan,
}

/// Checks everything; notes the newest toolkit in a release source.
pub(super) fn check(needs: &Needs, source: &mut Source, host: &HostFacts) -> Result<(), String> {
    check_platform(needs, host)?;
    if let Some(python) = needs.python {
        check_python(python, host)?;
    }
    for tool in &needs.tools {
        check_tool(tool, host)?;
    }
    if let Source::Pip(pip) = source {
        let platform = pip.wheels.iter().find(|wheel| wheel.os == host.os && wheel.arch == host.arch);
        let wheel = platform.ok_or_else(|| format!("{} has no wheel for {} on {}", pip.package, host.os, host.arch))?;
        check_glibc(wheel.glibc, host)?;
    }
    check_features(&needs.features, host)?;
    match needs.device {
        None => Ok(()),
        Some(Backend::Vulkan) => reachable(host, |device| device.vendor != Vendor::Apple, "GPU").map(|_| ()),
        Some(Backend::Rocm) => check_rocm(&needs.gfx, host),
        Some(Backend::Cuda) => {
            let major = match source {
                Source::Release(release) => release.major.unwrap_or(0),
                _ => 0,
            };
            let newest = check_cuda(major, host)?;
            if let Source::Release(release) = source {
                release.newest = newest;
            }
            Ok(())
        }
    }
}

/// For another system or processor.
pub(super) fn is_foreign(needs: &Needs, host: &HostFacts) -> bool {
    needs.os.as_ref().is_some_and(|os| *os != host.os) || needs.arch.as_ref().is_some_and(|arch| *arch != host.arch)
}

fn check_platform(needs: &Needs, host: &HostFacts) -> Result<(), String> {
    if is_foreign(needs, host) {
        let (os, arch) = (needs.os.as_deref().unwrap_or("any system"), needs.arch.as_deref().unwrap_or("any processor"));
        return Err(format!("is for {os} on {arch}, this host is {} on {}", host.os, host.arch));
    }
    check_glibc(needs.glibc, host)
}

fn check_glibc(needed: Option<Version>, host: &HostFacts) -> Result<(), String> {
    match (needed, host.libc) {
        (None, _) => Ok(()),
        (Some(needed), Libc::Glibc { major, minor }) if Version { major, minor } >= needed => Ok(()),
        (Some(needed), Libc::Glibc { major, minor }) => Err(format!("needs glibc {needed}, this host has {major}.{minor}")),
        (Some(needed), Libc::Musl) => Err(format!("needs glibc {needed}, this host has musl")),
        (Some(needed), Libc::Other) => Err(format!("needs glibc {needed}, which was not found on this host")),
    }
}

fn check_python(needed: Version, host: &HostFacts) -> Result<(), String> {
    let Some(found) = host.tools.python.as_deref() else { return Err(format!("needs Python {needed} with pip, which was not found")) };
    match Version::parse(found) {
        Some(version) if version < needed => Err(format!("needs Python {needed}, this host has {found}")),
        _ => Ok(()),
    }
}

fn check_tool(tool: &str, host: &HostFacts) -> Result<(), String> {
    let (found, name) = match tool {
        "python" => (&host.tools.python, "Python 3 with pip"),
        "cmake" => (&host.tools.cmake, "cmake"),
        "ninja" => (&host.tools.ninja, "ninja"),
        _ => (&host.tools.cxx, "a C++ compiler"),
    };
    if found.is_some() { Ok(()) } else { Err(format!("needs {name}, which was not found")) }
}

fn check_features(needed: &[String], host: &HostFacts) -> Result<(), String> {
    let missing: Vec<_> = needed.iter().filter(|feature| !host.cpu.features.contains(*feature)).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("needs a CPU with {}, this one has {}", missing.join(" and "), vector_level(&host.cpu)))
}

/// The widest vector instructions of a CPU, for messages.
pub(crate) fn vector_level(cpu: &CpuFacts) -> &str {
    let levels = ["amx_tile", "avx512f", "avx2", "avx", "sse4_2", "sve", "i8mm", "asimddp", "asimd"];
    levels.into_iter().find(|level| cpu.features.contains(*level)).unwrap_or("none that is known")
}

/// The devices that can be reached among those asked for; the reason where there is none.
fn reachable<'a>(host: &'a HostFacts, wanted: impl Fn(&Device) -> bool, name: &str) -> Result<Vec<&'a Device>, String> {
    let devices: Vec<_> = host.devices.iter().filter(|device| wanted(device)).collect();
    let usable: Vec<_> = devices.iter().copied().filter(|device| device.unreachable.is_none()).collect();
    if !usable.is_empty() {
        return Ok(usable);
    }
    match devices.first().and_then(|device| Some((device, device.unreachable.as_ref()?))) {
        Some((device, why)) => Err(format!("{} is there but cannot be used: {why}", device.name)),
        None => Err(format!("this host has no {name}")),
    }
}

fn check_rocm(gfx: &[String], host: &HostFacts) -> Result<(), String> {
    let devices = reachable(host, |device| device.vendor == Vendor::Amd, "AMD GPU")?;
    if devices.iter().any(|device| device.architecture.as_ref().is_some_and(|name| gfx.contains(name))) {
        return Ok(());
    }
    let names: Vec<_> = devices.iter().map(|device| device.architecture.as_deref().unwrap_or("unknown")).collect();
    Err(format!("is not compiled for this GPU ({})", names.join(", ")))
}

/// Newest CUDA toolkit whose intermediate code a driver branch compiles (ENGINES 3.4). Branches newer than this
/// table are trusted with any toolkit; the proof decides.
const DRIVERS: [(u32, Version); 7] = [
    (550, Version { major: 12, minor: 4 }),
    (555, Version { major: 12, minor: 5 }),
    (560, Version { major: 12, minor: 6 }),
    (570, Version { major: 12, minor: 8 }),
    (575, Version { major: 12, minor: 9 }),
    (580, Version { major: 13, minor: 0 }),
    (590, Version { major: 13, minor: 1 }),
];
/// Oldest driver branch beyond the table.
const TRUSTED_DRIVER: u32 = 595;

/// The newest toolkit of that major version which at least one NVIDIA device can run; `None` = any.
fn check_cuda(major: u32, host: &HostFacts) -> Result<Option<Version>, String> {
    let devices = reachable(host, |device| device.vendor == Vendor::Nvidia, "NVIDIA GPU")?;
    let answers: Vec<_> = devices.iter().map(|device| newest_toolkit(major, device)).collect();
    let mut best: Option<Option<Version>> = None;
    for answer in answers.iter().flatten() {
        best = match (best, *answer) {
            (None, answer) => Some(answer),
            (Some(Some(one)), Some(other)) => Some(Some(one.max(other))),
            _ => Some(None),
        };
    }
    match (best, answers.into_iter().find_map(Result::err)) {
        (Some(best), _) => Ok(best),
        (None, reason) => Err(reason.unwrap_or_default()),
    }
}

/// What one device can run of a CUDA major version. Builds hold machine code for some capabilities (8.6, 8.9,
/// 12.x) and intermediate code for the others, which the driver must know how to compile.
fn newest_toolkit(major: u32, device: &Device) -> Result<Option<Version>, String> {
    let driver = device.driver.as_deref().and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    let Some(driver) = driver else { return Err(format!("the driver version of {} is not known", device.name)) };
    let capability = device.architecture.as_deref().and_then(Version::parse);
    let Some(capability) = capability else { return Err(format!("the compute capability of {} is not known", device.name)) };
    let (oldest_driver, oldest_capability) = match major {
        13 => (580, Version { major: 7, minor: 5 }),
        _ => (550, Version { major: 5, minor: 0 }),
    };
    if capability < oldest_capability {
        return Err(format!("CUDA {major} builds need compute capability {oldest_capability}, {} has {capability}", device.name));
    }
    if driver < oldest_driver {
        return Err(format!("CUDA {major} needs driver {oldest_driver} or newer, this host has {driver}"));
    }
    let has_machine_code = matches!((capability.major, capability.minor), (8, 6 | 9)) || capability.major == 12;
    if has_machine_code && !(capability.major == 12 && driver < 570) || driver >= TRUSTED_DRIVER {
        return Ok(None);
    }
    let newest = DRIVERS.iter().rev().find(|(branch, _)| *branch <= driver).map(|(_, version)| *version);
    Ok(newest.map(|newest| if newest.major > major { Version { major, minor: u32::MAX } } else { newest }))
}
