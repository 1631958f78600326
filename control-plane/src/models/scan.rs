//! Finds models in folders that are not ours: registered ones, and a path somebody names.
//!
//! Reads names only; headers are read by the caller, once per file version. Bounded in depth and in entries,
//! and a folder reached by a link is not entered, so that neither a loop nor somebody's whole disk can hold it up.
//! Links to files are followed: that is how the hub's own cache names its blobs.

use std::fs;
use std::path::{Path, PathBuf};

use super::choose::{best_projector, is_model, is_projector, shard};

/// Folders below a registered one that are looked into.
const DEPTH: usize = 6;
/// Directory entries that are looked at below one registered folder.
const ENTRIES: usize = 20_000;
/// Models that are taken up from one registered folder.
const MODELS: usize = 500;

/// Files of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The one file, or all shards in order.
    pub(super) files: Vec<PathBuf>,
    /// Projector beside it.
    pub(super) mmproj: Option<PathBuf>,
}

/// All complete models below a folder, by path. Blocking.
pub(super) fn folder(root: &Path) -> Vec<Found> {
    let mut left = ENTRIES;
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut names = Vec::new();
        for entry in entries.flatten() {
            if left == 0 || found.len() >= MODELS {
                tracing::warn!(models.folder = %root.display(), "a model folder has too many entries; the rest is not looked at");
                break;
            }
            left -= 1;
            let Ok(kind) = entry.file_type() else { continue };
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if kind.is_dir() && depth < DEPTH && !hidden {
                folders.push((entry.path(), depth + 1));
            } else if !kind.is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        found.extend(models_of(&folder, &names));
    }
    found.sort_by(|one, other| one.files.cmp(&other.files));
    found.truncate(MODELS);
    found
}

/// The model a path names: a file, any shard of one, or a folder that holds exactly one model. `Err` says why not. Blocking.
pub(super) fn path(path: &Path) -> Result<Found, String> {
    let meta = fs::metadata(path).map_err(|error| error.to_string())?;
    if meta.is_dir() {
        let mut models = models_of(path, &names_in(path)?);
        return match (models.pop(), models.pop()) {
            (Some(model), None) => Ok(model),
            (None, _) => Err("the folder holds no complete GGUF model".into()),
            _ => Err("the folder holds several models; name the file".into()),
        };
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err("not the path of a file".into());
    };
    let names = names_in(folder)?;
    let mut models = models_of(folder, &names);
    match models.iter().position(|model| model.files.iter().any(|file| file == path)) {
        Some(index) => Ok(models.swap_remove(index)),
        None if shard(name).is_some() => Err("parts of the model are missing beside it".into()),
        // Whatever its name, the header decides what it is.
        None => Ok(Found { files: vec![path.to_owned()], mmproj: None }),
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    Ok(entries.take(ENTRIES).flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The complete models among the files of one folder.
fn models_of(folder: &Path, names: &[String]) -> Vec<Found> {
    let mut sorted: Vec<&String> = names.iter().filter(|name| is_model(name) && folder.join(name).is_file()).collect();
    sorted.sort();
    let mut models: Vec<(&str, Vec<PathBuf>)> = Vec::new();
    for name in &sorted {
        match shard(name) {
            None => models.push((name.trim_end_matches(".gguf"), vec![folder.join(name)])),
            Some((stem, 1, of)) => {
                let parts: Vec<String> = (1..=of.min(ENTRIES as u64)).map(|index| format!("{stem}-{index:05}-of-{of:05}.gguf")).collect();
                if parts.iter().all(|part| sorted.binary_search(&part).is_ok()) {
                    models.push((stem, parts.iter().map(|part| folder.join(part)).collect()));
                }
            }
            Some(_) => {}
        }
    }
    let projectors: Vec<&String> = names.iter().filter(|name| is_projector(name) && folder.join(name).is_file()).collect();
    let alone = models.len() == 1;
    let projector_for = |stem: &str| {
        // Beside several models a projector belongs to the one it shares its name with.
        let near = projectors.iter().copied().filter(|name| alone || names_same_model(name, stem)).collect();
        best_projector(near, |name| name.as_str()).map(|name| folder.join(name))
    };
    models.into_iter().map(|(stem, files)| Found { mmproj: projector_for(stem), files }).collect()
}

/// `mmproj-Gemma-4B-F16.gguf` goes with `Gemma-4B-Q4_K_M`: one name without its quantisation contains the other.
fn names_same_model(projector: &str, stem: &str) -> bool {
    let bare = |name: &str| {
        let quantisation = super::choose::quantisation(&format!("{name}.gguf")).unwrap_or_default();
        let name = name.to_ascii_uppercase().replace("MMPROJ", "").replace("MODEL", "");
        name.replace(&quantisation, "").trim_matches(['-', '.', '_']).to_owned()
    };
    let (projector, stem) = (bare(projector.trim_end_matches(".gguf")), bare(stem));
    !projector.is_empty() && (stem.contains(&projector) || projector.contains(&stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
        root
    }

    fn found(root: &Path) -> Vec<(Vec<String>, Option<String>)> {
        let short = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        folder(root).iter().map(|model| (model.files.iter().map(short).collect(), model.mmproj.as_ref().map(short))).collect()
    }

    #[test]
    fn complete_models_are_found_with_their_projectors_and_incomplete_ones_are_not() {
        let root = tree(&[
            "a/one-Q4_K_M.gguf",
            "a/mmproj-F32.gguf",
            "a/mmproj-F16.gguf",
            "b/Gemma-4B-Q4_K_M.gguf",
            "b/Other-Q8_0.gguf",
            "b/mmproj-Gemma-4B-F16.gguf",
            "c/big-00001-of-00002.gguf",
            "c/big-00002-of-00002.gguf",
            "d/half-00001-of-00002.gguf",
            "e/partial.gguf.part",
            ".hidden/x.gguf",
        ]);
        assert_eq!(
            found(root.path()),
            [
                (vec!["a/one-Q4_K_M.gguf".to_owned()], Some("a/mmproj-F16.gguf".to_owned())),
                (vec!["b/Gemma-4B-Q4_K_M.gguf".to_owned()], Some("b/mmproj-Gemma-4B-F16.gguf".to_owned())),
                (vec!["b/Other-Q8_0.gguf".to_owned()], None),
                (vec!["c/big-00001-of-00002.gguf".to_owned(), "c/big-00002-of-00002.gguf".to_owned()], None),
            ]
        );
    }

    #[test]
    fn a_loop_of_links_is_not_followed_and_a_link_to_a_file_is() {
        let root = tree(&["blobs/0123", "deep/1/2/3/4/5/6/7/far.gguf"]);
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink(root.path().join("blobs/0123"), root.path().join("linked.gguf")).unwrap();
        assert_eq!(found(root.path()), [(vec!["linked.gguf".to_owned()], None)]);
    }

    #[test]
    fn a_path_names_a_file_any_part_of_a_split_model_or_a_folder_with_one_model() {
        let root = tree(&[
            "one/m.gguf",
            "one/mmproj.gguf",
            "two/a.gguf",
            "two/b.gguf",
            "s/x-00001-of-00002.gguf",
            "s/x-00002-of-00002.gguf",
            "odd",
        ]);
        let at = |name: &str| path(&root.path().join(name));
        assert_eq!(at("one").unwrap(), at("one/m.gguf").unwrap());
        assert!(at("one").unwrap().mmproj.is_some());
        assert_eq!(at("s/x-00002-of-00002.gguf").unwrap().files.len(), 2);
        assert_eq!(at("odd").unwrap().files, [root.path().join("odd")]);
        assert!(at("two").unwrap_err().contains("several"));
        assert!(at("absent").unwrap_err().contains("No such file"));
        fs::remove_file(root.path().join("s/x-00001-of-00002.gguf")).unwrap();
        assert!(at("s/x-00002-of-00002.gguf").unwrap_err().contains("missing"));
    }
}
