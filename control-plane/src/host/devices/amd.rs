//! AMD devices, as the kernel's compute interface shows them in sysfs.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use lifeboat_engines::host::{Device, Vendor};
use rustix::fs::Access;

/// All devices the kernel driver lists.
pub fn devices(root: &Path) -> Vec<Device> {
    let nodes = fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")).into_iter().flatten().flatten();
    let mut nodes: Vec<_> = nodes.map(|entry| entry.path()).collect();
    nodes.sort();
    nodes.iter().filter_map(|node| device(root, node)).collect()
}

fn device(root: &Path, node: &Path) -> Option<Device> {
    let text = fs::read_to_string(node.join("properties")).ok()?;
    let properties: HashMap<&str, u64> =
        text.lines().filter_map(|line| line.split_once(' ')).filter_map(|(key, value)| Some((key, value.trim().parse().ok()?))).collect();
    let number = |key: &str| properties.get(key).copied().unwrap_or(0);
    // Processors are nodes too, with no target.
    let architecture = Some(number("gfx_target_version")).filter(|target| *target > 0).map(target_name)?;
    let render = format!("renderD{}", number("drm_render_minor"));
    let card = root.join("sys/class/drm").join(&render).join("device");
    let read = |file: &str| fs::read_to_string(card.join(file)).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let bytes = |file: &str| read(file).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // A node with processor cores of its own is a chip whose graphics shares the host's memory.
    let (total, used) = if number("cpu_cores_count") > 0 { (0, 0) } else { (bytes("mem_info_vram_total"), bytes("mem_info_vram_used")) };
    Some(Device {
        vendor: Vendor::Amd,
        name: read("product_name").unwrap_or_else(|| format!("AMD {architecture}")),
        memory_total_bytes: total,
        memory_free_bytes: total.saturating_sub(used),
        driver: fs::read_to_string(root.join("sys/module/amdgpu/version")).ok().map(|text| text.trim().to_owned()),
        architecture: Some(architecture),
        unreachable: [root.join("dev/kfd"), root.join("dev/dri").join(render)].iter().find_map(|file| not_open_to_us(file)),
    })
}

fn not_open_to_us(file: &Path) -> Option<String> {
    let error = rustix::fs::access(file, Access::READ_OK | Access::WRITE_OK).err()?;
    Some(format!("{} cannot be opened: {error}; is this user in the groups render and video?", file.display()))
}

/// The compiler's name of a target: decimal digits for the major version, hexadecimal ones for the rest.
fn target_name(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_as_the_compiler_names_them() {
        for (version, name) in
            [(90_010, "gfx90a"), (90_402, "gfx942"), (90_500, "gfx950"), (110_000, "gfx1100"), (110_501, "gfx1151"), (120_001, "gfx1201")]
        {
            assert_eq!(target_name(version), name);
        }
    }

    #[test]
    fn cards_chips_and_processors_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let nodes = "sys/class/kfd/kfd/topology/nodes";
        for (path, text) in [
            (format!("{nodes}/0/properties"), "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n"),
            (format!("{nodes}/1/properties"), "cpu_cores_count 0\nsimd_count 192\ngfx_target_version 110000\ndrm_render_minor 128\n"),
            (format!("{nodes}/2/properties"), "cpu_cores_count 32\nsimd_count 80\ngfx_target_version 110501\ndrm_render_minor 129\n"),
            ("sys/class/drm/renderD128/device/mem_info_vram_total".into(), "25753026560\n"),
            ("sys/class/drm/renderD128/device/mem_info_vram_used".into(), "753026560\n"),
            ("sys/class/drm/renderD128/device/product_name".into(), "Radeon RX 7900 XTX\n"),
            ("sys/class/drm/renderD129/device/mem_info_vram_total".into(), "536870912\n"),
            ("dev/kfd".into(), ""),
            ("dev/dri/renderD128".into(), ""),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = devices(root.path());
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].architecture.as_deref()), ("Radeon RX 7900 XTX", Some("gfx1100")));
        assert_eq!((found[0].memory_total_bytes, found[0].memory_free_bytes), (25_753_026_560, 25_000_000_000));
        assert_eq!(found[0].unreachable, None);
        assert_eq!((found[1].name.as_str(), found[1].memory_total_bytes), ("AMD gfx1151", 0));
        assert!(found[1].unreachable.as_ref().is_some_and(|reason| reason.contains("renderD129")));
    }
}
