//! Names of release files: patterns instead of numbers, because the embedded toolkit versions change.

use super::{ReleaseSource, Version};

/// The files of one release that make up a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picked {
    /// The build itself.
    pub asset: String,
    /// The runtime beside it.
    pub companion: Option<String>,
}

/// The number of a nightly tag: `b11434` -> 11434. Other tags (`v0.7.0`) carry no binaries.
pub fn nightly_number(tag: &str) -> Option<u32> {
    let digits = tag.strip_prefix('b')?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Picks the files of a release by their names: of several toolkit versions the newest this host can run.
pub fn pick_asset<'a>(source: &ReleaseSource, tag: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> Result<Picked, String> {
    let mut found: Vec<(Option<Version>, &str)> =
        names.clone().into_iter().filter_map(|name| Some((matches(&source.asset, tag, name)?, name))).collect();
    if let Some(major) = source.major {
        found.retain(|(version, _)| version.is_some_and(|version| version.major == major));
    }
    if found.is_empty() {
        return Err(format!("release {tag} has no file like {}", source.asset.replace("{tag}", tag)));
    }
    found.sort_unstable();
    let newest = source.newest;
    let Some((toolkit, asset)) =
        found.iter().rev().find(|(version, _)| newest.is_none_or(|newest| version.is_none_or(|version| version <= newest)))
    else {
        let has: Vec<_> = found.iter().filter_map(|(version, _)| version.map(|version| version.to_string())).collect();
        let allows = newest.map(|version| version.to_string()).unwrap_or_default();
        return Err(format!("release {tag} is for toolkit {}, this host's driver runs {allows} at most", has.join(", ")));
    };
    let companion = match &source.companion {
        None => None,
        Some(pattern) => {
            let same = names.into_iter().find(|name| matches(pattern, tag, name) == Some(*toolkit));
            Some(same.ok_or_else(|| format!("release {tag} has no runtime archive for {asset}"))?.to_owned())
        }
    };
    Ok(Picked { asset: (*asset).to_owned(), companion })
}

/// `Some(version)` if the name fits the pattern; the version is that at `{version}`.
#[expect(clippy::option_option, reason = "whether it fits, and what stands at {version} if the pattern has one")]
fn matches(pattern: &str, tag: &str, name: &str) -> Option<Option<Version>> {
    let pattern = pattern.replace("{tag}", tag);
    match pattern.split_once("{version}") {
        None => (pattern == name).then_some(None),
        Some((before, after)) => Version::parse(name.strip_prefix(before)?.strip_suffix(after)?).map(Some),
    }
}
