//! The store on real database files: rows, generations, status, kills and full disks.

use lifeboat_engines::spec::EngineSpec;
use serde_json::json;

use super::*;
use crate::ids::{Generation, RowId};
use crate::key_limits::KeyLimits;
use crate::registry::{RowState, RowStatus};

fn spec(name: &str) -> EngineSpec {
    serde_json::from_value(json!({"model_name": name, "engine": "sim", "model": "sim:tiny"})).unwrap()
}

async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("lifeboat.db")).await.unwrap();
    (dir, store)
}

#[tokio::test]
async fn a_row_comes_back_as_it_was_written_with_any_script_in_its_name() {
    let (_dir, store) = store().await;
    let written = store.create_server(&spec("org/модель:Q4 模型")).await.unwrap();
    assert_eq!(written.generation, Generation(1));
    assert_eq!(store.find_server(written.id).await.unwrap(), Some(written.clone()));
    assert_eq!(store.list_servers().await.unwrap(), [written]);
    assert_eq!(store.find_server(RowId::new()).await.unwrap(), None);
}

#[tokio::test]
async fn rows_are_listed_oldest_first() {
    let (_dir, store) = store().await;
    for name in ["z", "a", "m"] {
        store.create_server(&spec(name)).await.unwrap();
    }
    let names: Vec<_> = store.list_servers().await.unwrap().into_iter().map(|row| row.spec.model_name).collect();
    assert_eq!(names, ["z", "a", "m"]);
}

#[tokio::test]
async fn every_edit_raises_the_generation_and_one_that_saw_another_is_refused() {
    let (_dir, store) = store().await;
    let row = store.create_server(&spec("one")).await.unwrap();
    let edited = store.update_server(row.id, Some(Generation(1)), &spec("two")).await.unwrap().unwrap();
    assert_eq!((edited.generation, edited.spec.model_name.as_str()), (Generation(2), "two"));
    let refused = store.update_server(row.id, Some(Generation(1)), &spec("three")).await;
    assert!(matches!(refused, Err(StoreError::Conflict { expected: Generation(1), found: Generation(2) })), "{refused:?}");
    assert_eq!(store.find_server(row.id).await.unwrap().unwrap().spec.model_name, "two");
    assert_eq!(store.update_server(row.id, None, &spec("four")).await.unwrap().unwrap().generation, Generation(3));
    assert_eq!(store.update_server(RowId::new(), Some(Generation(1)), &spec("x")).await.unwrap(), None);
}

#[tokio::test]
async fn edits_at_the_same_time_all_count() {
    let (_dir, store) = store().await;
    let row = store.create_server(&spec("one")).await.unwrap();
    let edits = (0..20).map(|_| store.update_server(row.id, None, &row.spec));
    for edit in futures_util::future::join_all(edits).await {
        edit.unwrap();
    }
    assert_eq!(store.find_server(row.id).await.unwrap().unwrap().generation, Generation(21));
}

#[tokio::test]
async fn a_status_never_touches_the_desired_half_and_goes_with_its_row() {
    let (_dir, store) = store().await;
    let row = store.create_server(&spec("one")).await.unwrap();
    let status =
        RowStatus { state: RowState::Failed, state_reason: Some("no memory".into()), pid: Some(7), restarts: 3, ..Default::default() };
    store.record_status(row.id, row.generation, &status).await.unwrap();
    assert_eq!(store.find_server(row.id).await.unwrap(), Some(row.clone()));
    let ready = RowStatus { state: RowState::Ready, ..Default::default() };
    for observed in [&status, &ready] {
        store.record_status(row.id, row.generation, observed).await.unwrap();
        assert_eq!(store.list_statuses().await.unwrap()[0].status, *observed);
    }
    assert!(store.delete_server(row.id).await.unwrap());
    assert!(!store.delete_server(row.id).await.unwrap());
    store.record_status(row.id, row.generation, &status).await.unwrap();
    assert_eq!(store.list_statuses().await.unwrap(), []);
}

#[tokio::test]
async fn a_kill_at_any_point_loses_nothing_that_was_committed() {
    let (dir, store) = store().await;
    let mut kept = Vec::new();
    for number in 0..40 {
        kept.push(store.create_server(&spec(&number.to_string())).await.unwrap().id);
    }
    // What kill -9 leaves: the database and its WAL as they are, nothing folded back, no lock held.
    let after = tempfile::tempdir().unwrap();
    for name in ["lifeboat.db", "lifeboat.db-wal"] {
        std::fs::copy(dir.path().join(name), after.path().join(name)).unwrap();
    }
    let reopened = Store::open(&after.path().join("lifeboat.db")).await.unwrap();
    let found: Vec<_> = reopened.list_servers().await.unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(found, kept);
}

#[tokio::test]
async fn a_torn_wal_gives_back_the_last_whole_transaction() {
    let (dir, store) = store().await;
    store.create_server(&spec("first")).await.unwrap();
    let wal = dir.path().join("lifeboat.db-wal");
    let whole = std::fs::metadata(&wal).unwrap().len();
    store.create_server(&spec("second")).await.unwrap();
    let grown = std::fs::metadata(&wal).unwrap().len();
    assert!(grown > whole);
    let after = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("lifeboat.db"), after.path().join("lifeboat.db")).unwrap();
    let bytes = std::fs::read(&wal).unwrap();
    std::fs::write(after.path().join("lifeboat.db-wal"), &bytes[..usize::try_from(grown).unwrap() - 100]).unwrap();
    let reopened = Store::open(&after.path().join("lifeboat.db")).await.unwrap();
    let names: Vec<_> = reopened.list_servers().await.unwrap().into_iter().map(|row| row.spec.model_name).collect();
    assert_eq!(names, ["first"]);
}

#[tokio::test]
async fn an_older_binary_refuses_a_newer_schema_names_both_and_changes_nothing() {
    let (dir, store) = store().await;
    let row = store.create_server(&spec("kept")).await.unwrap();
    sqlx::query("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9, 'later', 1, x'00', 0)")
        .execute(&store.writer)
        .await
        .unwrap();
    store.close().await;
    let path = dir.path().join("lifeboat.db");
    let error = Store::open(&path).await.unwrap_err();
    let StoreError::NewerSchema { found: 9, known } = error else { panic!("{error:?}") };
    assert!((4..9).contains(&known));
    assert!(error.to_string().contains("schema 9") && error.to_string().contains(&format!("knows {known}")));
    let raw = SqlitePoolOptions::new().connect_with(SqliteConnectOptions::new().filename(&path)).await.unwrap();
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM servers WHERE id = ?").bind(row.id.to_string()).fetch_one(&raw).await.unwrap();
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn a_full_disk_is_told_apart_and_reading_and_later_writing_go_on() {
    let (_dir, store) = store().await;
    let row = store.create_server(&spec("before")).await.unwrap();
    store.set_page_limit(1).await;
    let mut long = spec("long");
    long.extra_args = vec!["x".repeat(100_000)];
    let refused = store.create_server(&long).await;
    assert!(matches!(refused, Err(StoreError::DiskFull(_))), "{refused:?}");
    assert_eq!(store.list_servers().await.unwrap(), [row]);
    store.set_page_limit(1 << 20).await;
    store.create_server(&long).await.unwrap();
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_told_and_takes_no_other_with_it() {
    let (_dir, store) = store().await;
    let broken = store.create_server(&spec("one")).await.unwrap();
    let other = store.create_server(&spec("two")).await.unwrap();
    let id = broken.id.to_string();
    let edit = "UPDATE servers SET spec = json_set(spec, '$.nonsense', 1, '$.slots', 'many') WHERE id = ?";
    sqlx::query(edit).bind(&id).execute(&store.writer).await.unwrap();
    let rows = store.list_servers().await.unwrap();
    assert_eq!(rows[1], other);
    assert!(rows[0].unreadable.as_deref().unwrap().contains("nonsense"), "{rows:?}");
    assert_eq!((rows[0].id, &rows[0].spec), (broken.id, &broken.spec), "what is understood of it is kept");
    assert!(sqlx::query("UPDATE servers SET spec = '{'").execute(&store.writer).await.is_err(), "the schema refuses what is not JSON");
}

#[tokio::test]
async fn a_file_that_is_no_database_and_one_that_cannot_be_written_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lifeboat.db");
    std::fs::write(&path, "no database ".repeat(1000)).unwrap();
    let error = Store::open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert_eq!(crate::causes::chain(&error).matches("file is not a database").count(), 1, "{}", crate::causes::chain(&error));
    let (_dir, store) = self::store().await;
    sqlx::query("PRAGMA query_only = 1").execute(&store.writer).await.unwrap();
    let error = store.create_server(&spec("one")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable { .. }), "{error:?}");
}

#[tokio::test]
async fn keys_are_listed_after_they_are_revoked() {
    let (_dir, store) = store().await;
    let key = keys::KeyRow {
        id: uuid::Uuid::now_v7(),
        name: "laptop".into(),
        hash: [7; 32],
        prefix: "lb_abcd".into(),
        inference: true,
        admin: true,
        limits: KeyLimits::default(),
        created_at: 1,
        last_used_at: None,
        revoked_at: None,
    };
    store.create_key(&key).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap(), std::slice::from_ref(&key));
    store.revoke_key(key.id).await.unwrap();
    assert!(store.list_keys().await.unwrap()[0].revoked_at.is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_may_read_the_database() {
    let (dir, store) = store().await;
    store.create_server(&spec("one")).await.unwrap();
    for name in ["lifeboat.db", "lifeboat.db-wal"] {
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(dir.path().join(name)).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

impl Store {
    /// Makes the disk full at so many pages, or at what is used by now if that is more.
    pub(crate) async fn set_page_limit(&self, pages: i64) {
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        sqlx::query_scalar::<_, i64>(statement).fetch_one(&self.writer).await.unwrap();
    }
}

#[tokio::test]
async fn every_statement_that_was_checked_once_still_fits_the_migrations() {
    let (_dir, store) = store().await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(".sqlx");
    let mut checked = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let statement = format!("EXPLAIN {}", record["query"].as_str().unwrap());
        let fits = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&store.readers).await;
        assert!(fits.is_ok(), "{}: {fits:?}; run `make sqlx`", path.display());
        checked += 1;
    }
    assert!(checked > 10, "{checked} statements");
}

#[tokio::test]
async fn what_is_written_after_sqlite_ended_a_transaction_by_itself_is_there_for_others() {
    let (_dir, store) = store().await;
    // As on a full disk: the transaction is over before it is dropped, so that its rollback fails; the next one is dropped too.
    let mut ended = store.writer.begin().await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut *ended).await.unwrap();
    drop(ended);
    drop(store.writer.begin().await.unwrap());
    let row = store.create_server(&spec("later")).await.unwrap();
    assert_eq!(store.find_server(row.id).await.unwrap(), Some(row));
}
