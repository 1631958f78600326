//! Which files of a repository make one model: pure selection over a listing.

use std::collections::BTreeMap;

use super::ModelsError;

/// A file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Path inside the repository.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Digest, hex, where the listing has one.
    pub sha256: Option<String>,
}

/// The files of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What tells this model from the others of the repository: its quantisation, or its file.
    pub label: String,
    /// All shards in order, or the one file.
    pub files: Vec<Listed>,
    /// Vision or audio projector.
    pub mmproj: Option<Listed>,
}

/// Quantisations in the order they are taken when none is asked for: the usual compromise first, then what
/// loses little, then what fits where nothing else does, and full precision last.
const PREFERENCE: &[&str] = &[
    "Q4_K_M",
    "Q4_K_XL",
    "Q4_0",
    "Q4_1",
    "IQ4_XS",
    "Q4_K_S",
    "IQ4_NL",
    "Q4_K_L",
    "MXFP4_MOE",
    "MXFP4",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_K_XL",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q8_0",
    "Q6_K_XL",
    "Q8_K_XL",
    "Q3_K_M",
    "Q3_K_XL",
    "Q3_K_L",
    "Q3_K_S",
    "IQ3_M",
    "IQ3_XXS",
    "Q2_K",
    "BF16",
    "F16",
    "F32",
];

/// Precisions of a projector, best first: it is small, and the engines want 16 bits.
const PROJECTOR_PREFERENCE: &[&str] = &["F16", "BF16", "Q8_0", "F32"];

/// Chooses the model `want` names, or the preferred one.
pub fn choose(repo: &str, listing: &[Listed], want: Option<&str>) -> Result<Choice, ModelsError> {
    let fail = |problem: String| Err(ModelsError::NoChoice { source_text: format!("hf:{repo}"), problem });
    let models = group(listing.iter().filter(|file| is_model(&file.path)));
    if models.is_empty() {
        let other = listing.iter().any(|file| has_extension(&file.path, "safetensors"));
        let cure = if other { "; it holds safetensors, look for a repository of the same model that ends in -GGUF" } else { "" };
        return fail(format!("the repository holds no GGUF model{cure}"));
    }
    let labels = || {
        let mut labels: Vec<String> = models.iter().map(Group::label).collect();
        labels.sort();
        labels.dedup();
        labels.join(", ")
    };
    let candidates: Vec<&Group> = match want {
        Some(want) => {
            let wanted: Vec<&Group> = models.iter().filter(|group| group.is_file(want)).collect();
            if wanted.is_empty() { models.iter().filter(|group| group.is_quantisation(want)).collect() } else { wanted }
        }
        None => preferred(&models),
    };
    let group = match candidates[..] {
        [group] => group,
        [] => return fail(format!("it has no {}; it has {}", want.unwrap_or_default(), labels())),
        [..] => {
            let files: Vec<&str> = candidates.iter().map(|group| group.files[0].path.as_str()).collect();
            return fail(format!("several models match, name the file: {}", files.join(", ")));
        }
    };
    if group.files.len() as u64 != group.shards {
        return fail(format!("{} has {} of its {} parts there", group.files[0].path, group.files.len(), group.shards));
    }
    // A label that would lead to another file is no name.
    let label = match group.quantisation() {
        Some(label) if models.iter().filter(|other| other.is_quantisation(&label)).count() == 1 => label,
        _ => group.files[0].path.clone(),
    };
    Ok(Choice { label, files: group.files.iter().map(|file| (*file).clone()).collect(), mmproj: projector(listing, group) })
}

fn preferred<'a>(models: &'a [Group<'a>]) -> Vec<&'a Group<'a>> {
    for quantisation in PREFERENCE {
        let matching: Vec<&Group> = models.iter().filter(|group| group.is_quantisation(quantisation)).collect();
        // A plain quantisation goes before a variant of it.
        let plain: Vec<&Group> =
            matching.iter().copied().filter(|group| group.quantisation().is_some_and(|label| label == *quantisation)).collect();
        if !plain.is_empty() {
            return plain;
        }
        if !matching.is_empty() {
            return matching;
        }
    }
    models.iter().min_by_key(|group| group.files.iter().map(|file| file.size).sum::<u64>()).into_iter().collect()
}

/// One model: a file, or shards of it.
struct Group<'a> {
    files: Vec<&'a Listed>,
    shards: u64,
}

impl Group<'_> {
    fn quantisation(&self) -> Option<String> {
        quantisation(&self.files[0].path)
    }

    fn label(&self) -> String {
        self.quantisation().unwrap_or_else(|| self.files[0].path.clone())
    }

    fn is_file(&self, want: &str) -> bool {
        self.files.iter().any(|file| file.path == want || base(&file.path) == want || stem(&file.path).eq_ignore_ascii_case(want))
    }

    fn is_quantisation(&self, want: &str) -> bool {
        self.quantisation().is_some_and(|label| {
            label.eq_ignore_ascii_case(want) || label.strip_prefix("UD-").is_some_and(|plain| plain.eq_ignore_ascii_case(want))
        })
    }
}

fn group<'a>(files: impl Iterator<Item = &'a Listed>) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<(String, u64), Vec<(u64, &Listed)>> = BTreeMap::new();
    for file in files {
        let (key, index, of) = shard(&file.path).map_or((file.path.as_str(), 1, 1), |(name, index, of)| (name, index, of));
        groups.entry((key.to_owned(), of)).or_default().push((index, file));
    }
    let in_order = |((_, shards), mut files): ((String, u64), Vec<(u64, &'a Listed)>)| {
        files.sort_by_key(|(index, _)| *index);
        Group { files: files.into_iter().map(|(_, file)| file).collect(), shards }
    };
    groups.into_iter().map(in_order).collect()
}

/// `dir/name-00002-of-00005.gguf` as (`dir/name`, 2, 5).
pub fn shard(path: &str) -> Option<(&str, u64, u64)> {
    let stem = path.strip_suffix(".gguf")?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (name, index) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<u64>().ok())?;
    Some((name, number(index)?, number(of)?))
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn stem(path: &str) -> &str {
    let name = base(path);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

fn has_extension(path: &str, extension: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, found)| found.eq_ignore_ascii_case(extension))
}

/// Whether a file may be a model: GGUF, and none of the things that travel beside models.
pub fn is_model(path: &str) -> bool {
    let name = base(path).to_ascii_lowercase();
    has_extension(path, "gguf") && !is_projector(path) && !["imatrix", "ggml-vocab", "-lora"].iter().any(|other| name.contains(other))
}

/// Whether a file is a projector by its name.
pub fn is_projector(path: &str) -> bool {
    has_extension(path, "gguf") && base(path).to_ascii_lowercase().contains("mmproj")
}

fn projector(listing: &[Listed], group: &Group<'_>) -> Option<Listed> {
    let folder = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let home = folder(&group.files[0].path);
    let near: Vec<&Listed> = listing.iter().filter(|file| is_projector(&file.path)).collect();
    let here = near.iter().copied().filter(|file| folder(&file.path) == home).collect::<Vec<_>>();
    let root = near.iter().copied().filter(|file| folder(&file.path).is_empty()).collect::<Vec<_>>();
    let candidates = if here.is_empty() { root } else { here };
    best_projector(candidates, |file| &file.path).cloned()
}

/// The projector to take among several.
pub fn best_projector<T>(candidates: Vec<T>, path: impl Fn(&T) -> &str) -> Option<T> {
    let rank = |candidate: &T| {
        let quantisation = quantisation(path(candidate)).unwrap_or_default();
        let quantisation = quantisation.strip_prefix("UD-").unwrap_or(&quantisation);
        PROJECTOR_PREFERENCE.iter().position(|preferred| *preferred == quantisation).unwrap_or(PROJECTOR_PREFERENCE.len())
    };
    candidates.into_iter().min_by_key(rank)
}

/// The quantisation a file name tells, upper case: `Q4_K_M`, `UD-Q4_K_XL`, `F16`.
pub fn quantisation(path: &str) -> Option<String> {
    let whole = shard(path).map_or_else(|| stem(path), |(name, ..)| base(name)).to_ascii_uppercase();
    let starts = (0..whole.len()).rev().filter(|at| *at == 0 || matches!(whole.as_bytes()[at - 1], b'-' | b'.' | b'_'));
    for start in starts {
        let Some(token) = whole.get(start..) else { continue };
        let token = token.split(['-', '.']).next().unwrap_or_default();
        if is_quantisation_name(token) {
            // Longer names contain shorter ones: MXFP4_MOE ends in nothing of its own, Q4_K_M starts at its Q.
            let dynamic = whole.get(..start).is_some_and(|before| before.ends_with("UD-") || before.ends_with("UD_"));
            let plain = match token {
                "FP16" => "F16",
                "FP32" => "F32",
                other => other,
            };
            return Some(if dynamic { format!("UD-{plain}") } else { plain.to_owned() });
        }
    }
    None
}

fn is_quantisation_name(token: &str) -> bool {
    if matches!(token, "F16" | "F32" | "BF16" | "FP16" | "FP32" | "MXFP4" | "MXFP4_MOE" | "NVFP4" | "TQ1_0" | "TQ2_0") {
        return true;
    }
    let Some(rest) = token.strip_prefix("IQ").or_else(|| token.strip_prefix('Q')) else { return false };
    let mut parts = rest.split('_');
    let bits = parts.next().is_some_and(|bits| matches!(bits, "1" | "2" | "3" | "4" | "5" | "6" | "8"));
    let mut kinds = 0;
    bits && parts.all(|part| {
        kinds += 1;
        matches!(part, "0" | "1" | "4" | "8" | "K" | "S" | "M" | "L" | "XS" | "XXS" | "XL" | "XXL" | "NL")
    }) && kinds > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(paths: &[&str]) -> Vec<Listed> {
        let size = |index: usize| 1_000 - index as u64;
        paths.iter().enumerate().map(|(index, path)| Listed { path: (*path).into(), size: size(index), sha256: None }).collect()
    }

    fn chosen(paths: &[&str], want: Option<&str>) -> Result<(String, Vec<String>, Option<String>), String> {
        choose("o/r", &listing(paths), want)
            .map(|choice| {
                let files = choice.files.into_iter().map(|file| file.path).collect();
                (choice.label, files, choice.mmproj.map(|file| file.path))
            })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_quantisation_is_read_from_the_names_people_give() {
        for (path, expected) in [
            ("Qwen3-4B-Instruct-2507-Q4_K_M.gguf", Some("Q4_K_M")),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("smollm2-360m-instruct-q8_0.gguf", Some("Q8_0")),
            ("sub/Qwen3-30B-A3B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", Some("MXFP4")),
            ("gpt-oss-20b-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("BF16/m-BF16-00001-of-00002.gguf", Some("BF16")),
            ("model_IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("mmproj-F16.gguf", Some("F16")),
            ("mmproj-model-fp16.gguf", Some("F16")),
            ("llama-Q4_0_4_8.gguf", Some("Q4_0_4_8")),
            ("plain.gguf", None),
            ("Q-model-Q3.gguf", None),
        ] {
            assert_eq!(quantisation(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn the_asked_quantisation_is_taken_whatever_its_case() {
        let files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "m.imatrix.gguf"];
        let one = |label: &str, file: &str| Ok((label.to_owned(), vec![file.to_owned()], Some("mmproj-F16.gguf".to_owned())));
        assert_eq!(chosen(&files, Some("q8_0")), one("Q8_0", "m-Q8_0.gguf"));
        assert_eq!(chosen(&files, Some("Q4_K_XL")), one("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"));
        assert_eq!(chosen(&files, Some("m-Q4_K_M.gguf")), one("Q4_K_M", "m-Q4_K_M.gguf"));
        assert_eq!(chosen(&files, Some("m-q4_k_m")), one("Q4_K_M", "m-Q4_K_M.gguf"));
        assert_eq!(chosen(&files, None), one("Q4_K_M", "m-Q4_K_M.gguf"));
        assert!(chosen(&files, Some("Q2_K")).unwrap_err().contains("it has no Q2_K; it has Q4_K_M, Q8_0, UD-Q4_K_XL"));
    }

    #[test]
    fn without_the_usual_quantisation_the_next_best_is_taken_and_else_the_smallest() {
        for (files, expected) in [
            (&["m-F16.gguf", "m-Q8_0.gguf"][..], "m-Q8_0.gguf"),
            (&["m-Q5_K_M.gguf", "m-Q4_0.gguf"], "m-Q4_0.gguf"),
            (&["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
            (&["big.gguf", "small.gguf"], "small.gguf"),
        ] {
            assert_eq!(chosen(files, None).unwrap().1, [expected]);
        }
    }

    #[test]
    fn a_split_model_comes_with_all_its_parts_or_not_at_all() {
        let files = ["a/m-Q4_K_M-00002-of-00002.gguf", "a/m-Q4_K_M-00001-of-00002.gguf", "mmproj-F32.gguf", "m-Q8_0-00001-of-00002.gguf"];
        let (label, parts, mmproj) = chosen(&files, None).unwrap();
        assert_eq!((label.as_str(), mmproj.as_deref()), ("Q4_K_M", Some("mmproj-F32.gguf")));
        assert_eq!(parts, ["a/m-Q4_K_M-00001-of-00002.gguf", "a/m-Q4_K_M-00002-of-00002.gguf"]);
        assert_eq!(chosen(&files, Some("a/m-Q4_K_M-00002-of-00002.gguf")).unwrap().1.len(), 2);
        assert!(chosen(&files, Some("Q8_0")).unwrap_err().contains("1 of its 2 parts"));
    }

    #[test]
    fn several_models_in_one_repository_must_be_named_by_file() {
        let files = ["7b-Q4_K_M.gguf", "13b-Q4_K_M.gguf", "13b-Q8_0.gguf"];
        assert!(chosen(&files, None).unwrap_err().contains("name the file: 13b-Q4_K_M.gguf, 7b-Q4_K_M.gguf"));
        assert_eq!(chosen(&files, Some("7b-Q4_K_M.gguf")).unwrap().0, "7b-Q4_K_M.gguf", "the label leads back to the same file");
        assert_eq!(chosen(&files, Some("Q8_0")).unwrap().0, "Q8_0");
    }

    #[test]
    fn a_repository_without_gguf_is_refused_with_the_cure() {
        assert!(chosen(&["model.safetensors"], None).unwrap_err().contains("-GGUF"));
        assert!(chosen(&["mmproj-F16.gguf"], None).unwrap_err().contains("no GGUF model"));
    }
}
