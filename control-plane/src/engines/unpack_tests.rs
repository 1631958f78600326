//! Archives as they are and as an enemy would make them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const SMALL: Caps = Caps { entries: 20, file_bytes: 10_000, total_bytes: 15_000 };

type Entries = tar::Builder<GzEncoder<File>>;

fn tar_of(folder: &Path, fill: impl FnOnce(&mut Entries)) -> PathBuf {
    let path = folder.join("a.tar.gz");
    let mut builder = tar::Builder::new(GzEncoder::new(File::create(&path).unwrap(), Compression::fast()));
    fill(&mut builder);
    builder.into_inner().unwrap().finish().unwrap();
    path
}

/// A header whose name is written as it is: the builder itself would refuse the bad ones.
fn header(name: &str, kind: tar::EntryType, size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_cksum();
    header
}

fn add(builder: &mut Entries, name: &str, content: &[u8], mode: u32) {
    builder.append(&header(name, tar::EntryType::Regular, content.len(), mode), content).unwrap();
}

fn add_link(builder: &mut Entries, kind: tar::EntryType, name: &str, target: &str) {
    let mut header = header(name, kind, 0, 0o777);
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    builder.append(&header, &[][..]).unwrap();
}

/// Unpacks into `out` below the folder.
fn unpack_here(folder: &Path, archive: &Path, caps: Caps) -> (PathBuf, Result<(), UnpackError>) {
    let out = folder.join("out");
    fs::create_dir(&out).unwrap();
    let result = unpack(archive, &out, caps);
    (out, result)
}

#[test]
fn files_folders_links_and_executable_bits_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let archive = tar_of(folder.path(), |builder| {
        add(builder, "./top/bin/server", b"#!", 0o755);
        add(builder, "top/lib.so.1", b"lib", 0o644);
        add_link(builder, tar::EntryType::Symlink, "top/lib.so", "lib.so.1");
        add_link(builder, tar::EntryType::Link, "top/other.so", "top/lib.so.1");
        add_link(builder, tar::EntryType::Symlink, "top/bin/up", "../lib.so");
    });
    let (out, result) = unpack_here(folder.path(), &archive, SMALL);
    result.unwrap();
    for name in ["top/lib.so.1", "top/lib.so", "top/other.so", "top/bin/up"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), b"lib", "{name}");
    }
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("top/bin/server"), mode("top/lib.so.1")), (0o755, 0o644));
}

#[test]
fn an_archive_that_leaves_its_folder_is_refused_and_writes_nothing_outside() {
    type Fill = fn(&mut Entries);
    let table: [(&str, Fill); 10] = [
        ("a path upwards", |builder| add(builder, "../evil", b"x", 0o644)),
        ("a path upwards in the middle", |builder| add(builder, "a/../../evil", b"x", 0o644)),
        ("an absolute path", |builder| add(builder, "/tmp/lifeboat-evil", b"x", 0o644)),
        ("a link upwards", |builder| add_link(builder, tar::EntryType::Symlink, "l", "../evil")),
        ("an absolute link", |builder| add_link(builder, tar::EntryType::Symlink, "l", "/etc/passwd")),
        ("a link to nowhere", |builder| add_link(builder, tar::EntryType::Symlink, "l", "nothing")),
        ("a hard link upwards", |builder| add_link(builder, tar::EntryType::Link, "l", "../secret")),
        ("a link through a link", |builder| {
            add(builder, "d/f", b"x", 0o644);
            add_link(builder, tar::EntryType::Symlink, "d/up", "..");
            add_link(builder, tar::EntryType::Symlink, "l", "d/up/../secret");
        }),
        ("a folder for a link through a link", |builder| {
            add_link(builder, tar::EntryType::Symlink, "l", "..");
            add_link(builder, tar::EntryType::Symlink, "l/evil/x", "y");
        }),
        ("a file through a link", |builder| {
            add_link(builder, tar::EntryType::Symlink, "l", "..");
            add(builder, "l/evil", b"x", 0o644);
        }),
    ];
    for (name, fill) in table {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let archive = tar_of(folder.path(), fill);
        let (_, result) = unpack_here(folder.path(), &archive, SMALL);
        assert!(matches!(result, Err(UnpackError::Refused { .. } | UnpackError::Write { .. })), "{name}: {result:?}");
        assert!(!folder.path().join("evil").exists() && !Path::new("/tmp/lifeboat-evil").exists(), "{name}");
    }
}

#[test]
fn devices_and_doubled_names_are_refused() {
    for kind in [tar::EntryType::Fifo, tar::EntryType::Char, tar::EntryType::Block] {
        let folder = tempfile::tempdir().unwrap();
        let archive = tar_of(folder.path(), |builder| builder.append(&header("n", kind, 0, 0o644), &[][..]).unwrap());
        assert!(matches!(unpack_here(folder.path(), &archive, SMALL).1, Err(UnpackError::Refused { .. })), "{kind:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let archive = tar_of(folder.path(), |builder| (0..2).for_each(|_| add(builder, "n", b"x", 0o644)));
    assert!(matches!(unpack_here(folder.path(), &archive, SMALL).1, Err(UnpackError::Write { .. })));
}

#[test]
fn too_many_entries_and_too_many_bytes_end_the_work() {
    let many: fn(&mut Entries) = |builder| (0..21).for_each(|index| add(builder, &format!("f{index}"), b"", 0o644));
    let long: fn(&mut Entries) = |builder| add(builder, "f", &[0; 10_001], 0o644);
    let total: fn(&mut Entries) = |builder| (0..2).for_each(|index| add(builder, &format!("f{index}"), &[0; 9000], 0o644));
    for (name, fill) in [("entries", many), ("one file", long), ("all files", total)] {
        let folder = tempfile::tempdir().unwrap();
        let archive = tar_of(folder.path(), fill);
        let (_, result) = unpack_here(folder.path(), &archive, SMALL);
        assert!(matches!(result, Err(UnpackError::TooMuch { .. })), "{name}: {result:?}");
    }
}

#[test]
fn a_torn_archive_and_an_unknown_kind_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let noise: Vec<u8> = (0..9000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).take(9000).collect();
    let archive = tar_of(folder.path(), |builder| add(builder, "f", &noise, 0o644));
    let bytes = fs::read(&archive).unwrap();
    fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(unpack_here(folder.path(), &archive, SMALL).1, Err(UnpackError::Read(_))));
    let other = folder.path().join("a.7z");
    fs::write(&other, "7z").unwrap();
    assert!(matches!(unpack(&other, folder.path(), SMALL), Err(UnpackError::Kind { .. })));
}

fn zip_of(folder: &Path, entries: &[(&str, u32, &[u8])]) -> PathBuf {
    let path = folder.join("a.zip");
    let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
    for (name, mode, content) in entries {
        let options = zip::write::SimpleFileOptions::default().unix_permissions(*mode);
        if mode & 0o170_000 == 0o120_000 {
            zip.add_symlink(*name, String::from_utf8_lossy(content), options).unwrap();
        } else {
            zip.start_file(*name, options).unwrap();
            zip.write_all(content).unwrap();
        }
    }
    zip.finish().unwrap();
    path
}

#[test]
fn a_zip_archive_is_held_to_the_same_rules() {
    let folder = tempfile::tempdir().unwrap();
    let archive = zip_of(folder.path(), &[("bin/server", 0o755, b"#!"), ("lib.so", 0o644, b"lib"), ("l", 0o120_777, b"lib.so")]);
    let (out, result) = unpack_here(folder.path(), &archive, SMALL);
    result.unwrap();
    assert_eq!(fs::read(out.join("l")).unwrap(), b"lib");
    assert_eq!(fs::metadata(out.join("bin/server")).unwrap().permissions().mode() & 0o777, 0o755);

    let bad: [(&str, u32, &[u8]); 5] = [
        ("../evil", 0o644, b"x"),
        ("/tmp/lifeboat-evil", 0o644, b"x"),
        ("..\\evil", 0o644, b"x"),
        ("l", 0o120_777, b"../evil"),
        ("big", 0o644, &[0; 10_001]),
    ];
    for entry in bad {
        let folder = tempfile::tempdir().unwrap();
        let archive = zip_of(folder.path(), &[entry]);
        let (_, result) = unpack_here(folder.path(), &archive, SMALL);
        assert!(matches!(result, Err(UnpackError::Refused { .. } | UnpackError::TooMuch { .. })), "{}: {result:?}", entry.0);
        assert!(!folder.path().join("evil").exists(), "{}", entry.0);
    }
}
