//! Keys in memory: who may do what, and what a change does to those who ask.

use http::HeaderValue;

use super::*;
use crate::key_limits::Priority;

fn headers(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
}

fn who(keys: &Keys, headers: &HeaderMap, scope: Scope) -> Result<Option<Uuid>, Denied> {
    keys.authorize(headers, scope).map(|caller| caller.key_id())
}

async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("lifeboat.db")).await.unwrap();
    (dir, store)
}

#[test]
fn a_key_is_43_letters_and_digits_and_no_two_are_alike() {
    let (one, two) = (generate("a", &[Scope::Inference], KeyLimits::default()), generate("a", &[Scope::Inference], KeyLimits::default()));
    let body = one.secret.strip_prefix("lb_").unwrap();
    assert_eq!(body.len(), 43);
    assert!(body.chars().all(|character| character.is_ascii_alphanumeric()));
    assert_ne!(one.secret, two.secret);
    assert!(one.secret.starts_with(&one.row.prefix) && one.row.prefix.len() < 12);
}

#[tokio::test]
async fn without_a_key_loopback_is_open_and_anything_else_is_shut() {
    let (_dir, store) = store().await;
    let open = Keys::load(&store, None, true).await.unwrap();
    assert_eq!(who(&open, &HeaderMap::new(), Scope::Admin), Ok(None));
    let shut = Keys::load(&store, None, false).await.unwrap();
    assert_eq!(who(&shut, &HeaderMap::new(), Scope::Inference), Err(Denied::Missing));
}

#[tokio::test]
async fn a_key_opens_its_scope_and_nothing_else_until_it_is_revoked() {
    let (_dir, store) = store().await;
    let key = generate("ci", &[Scope::Inference], KeyLimits::default());
    store.create_key(&key.row).await.unwrap();
    let keys = Keys::load(&store, None, true).await.unwrap();
    let caller = Ok(Some(key.row.id));
    for sent in [
        headers("authorization", &format!("Bearer {}", key.secret)),
        headers("authorization", &format!("bearer  {} ", key.secret)),
        headers("x-api-key", &key.secret),
    ] {
        assert_eq!(who(&keys, &sent, Scope::Inference), caller, "{sent:?}");
        assert_eq!(who(&keys, &sent, Scope::Admin), Err(Denied::Scope(Scope::Admin)));
    }
    assert_eq!(who(&keys, &headers("authorization", "Basic x"), Scope::Inference), Err(Denied::Missing));
    assert_eq!(who(&keys, &headers("x-api-key", "lb_wrong"), Scope::Inference), Err(Denied::Unknown));
    assert!(store.revoke_key(key.row.id).await.unwrap());
    assert!(!store.revoke_key(key.row.id).await.unwrap(), "a key is revoked once");
    keys.reload(&store).await.unwrap();
    assert!(keys.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revoked_key_stays_dead_however_many_changes_meet() {
    let (_dir, store) = store().await;
    let keys = Keys::load(&store, None, false).await.unwrap();
    for _ in 0..20 {
        let made: Vec<_> = (0..6).map(|_| generate("ci", &[Scope::Inference], KeyLimits::default())).collect();
        for key in &made {
            store.create_key(&key.row).await.unwrap();
        }
        keys.reload(&store).await.unwrap();
        // Each revokes its own key and takes over what the database says, all at the same time.
        let revoking = made.iter().map(async |key| {
            assert!(store.revoke_key(key.row.id).await.unwrap());
            keys.reload(&store).await.unwrap();
            assert_eq!(who(&keys, &headers("x-api-key", &key.secret), Scope::Inference), Err(Denied::Unknown));
        });
        futures_util::future::join_all(revoking).await;
        assert!(keys.is_empty());
    }
}

#[tokio::test]
async fn the_last_use_reaches_the_database_with_the_next_flush() {
    let (_dir, store) = store().await;
    let key = generate("ci", &[Scope::Admin], KeyLimits::default());
    store.create_key(&key.row).await.unwrap();
    let keys = Keys::load(&store, None, true).await.unwrap();
    keys.flush(&store).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap()[0].last_used_at, None);
    keys.authorize(&headers("x-api-key", &key.secret), Scope::Admin).unwrap();
    keys.flush(&store).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap()[0].last_used_at, keys.last_used(key.row.id));
    assert!(keys.last_used(key.row.id).is_some());
}

#[tokio::test]
async fn the_local_token_opens_everything_and_its_file_is_private_and_goes_with_it() {
    let (dir, store) = store().await;
    store.create_key(&generate("ci", &[Scope::Inference], KeyLimits::default()).row).await.unwrap();
    let token = LocalToken::create(dir.path()).unwrap();
    let keys = Keys::load(&store, Some(&token), false).await.unwrap();
    let read = read_local_token(dir.path()).unwrap().unwrap();
    assert!(read.starts_with("lb_local_"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(local_token_path(dir.path())).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(who(&keys, &headers("x-api-key", &read), Scope::Admin), Ok(None));
    drop(token);
    assert_eq!(read_local_token(dir.path()).unwrap(), None);
}

/// A living key with limits, and its caller.
async fn limited(limits: KeyLimits) -> (tempfile::TempDir, Store, Keys, NewKey) {
    let (dir, store) = store().await;
    let key = generate("laptop", &[Scope::Inference], limits);
    store.create_key(&key.row).await.unwrap();
    let keys = Keys::load(&store, None, true).await.unwrap();
    (dir, store, keys, key)
}

#[tokio::test]
async fn a_request_counts_until_it_is_dropped_and_through_a_change_of_the_limits() {
    let one_at_once = KeyLimits { concurrent_requests: Some(1), ..KeyLimits::default() };
    let (_dir, store, keys, key) = limited(one_at_once.clone()).await;
    let caller = keys.authorize(&headers("x-api-key", &key.secret), Scope::Inference).unwrap();
    let first = caller.begin().unwrap();
    let refused = caller.begin().unwrap_err();
    assert_eq!((refused.key.as_str(), refused.limit), ("laptop", Limit::Concurrent(1)));

    let two_at_once = KeyLimits { concurrent_requests: Some(2), ..one_at_once };
    let changed = store.update_key(key.row.id, |row| {
        (row.name, row.limits) = ("desk".into(), two_at_once.clone());
        Ok::<_, crate::store::StoreError>(())
    });
    assert_eq!(changed.await.unwrap().unwrap().name, "desk");
    keys.reload(&store).await.unwrap();
    let second = caller.begin().unwrap();
    assert_eq!(caller.begin().unwrap_err().key, "desk", "who was let in before sees the change");
    drop((first, second));
    assert_eq!(caller.running(), 0);
    assert!(store.list_keys().await.unwrap()[0].limits == two_at_once);
}

#[tokio::test]
async fn tokens_are_charged_when_the_request_ends() {
    let (_dir, _store, keys, key) = limited(KeyLimits { tokens_per_minute: Some(60), ..KeyLimits::default() }).await;
    let caller = keys.authorize(&headers("x-api-key", &key.secret), Scope::Inference).unwrap();
    let mut running = caller.begin().unwrap();
    running.used(120);
    assert!(caller.begin().is_ok(), "nothing is charged yet");
    drop(running);
    assert_eq!(caller.begin().unwrap_err().limit, Limit::Tokens(60));
}

#[tokio::test]
async fn a_band_is_what_was_asked_for_but_never_above_the_keys_ceiling() {
    let limits = KeyLimits { priority: Priority::Interactive, ..KeyLimits::default() };
    let (_dir, _store, keys, key) = limited(limits).await;
    let limited = keys.authorize(&headers("x-api-key", &key.secret), Scope::Inference).unwrap();
    for (asked, by_key, without) in [
        ("bulk", Priority::Bulk, Priority::Bulk),
        ("default", Priority::Default, Priority::Default),
        ("Interactive", Priority::Interactive, Priority::Interactive),
        ("system", Priority::Interactive, Priority::System),
        ("urgent", Priority::Default, Priority::Default),
    ] {
        let headers = headers("x-lifeboat-priority", asked);
        assert_eq!((limited.priority(&headers), Principal::local().priority(&headers)), (by_key, without), "{asked}");
    }
    assert_eq!(limited.priority(&HeaderMap::new()), Priority::Default);
    assert_eq!([Priority::Bulk, Priority::Default, Priority::Interactive, Priority::System].map(Priority::band), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_key_may_use_its_models_by_any_of_their_names_and_no_others() {
    let limits = KeyLimits { models: vec!["chat".into()], ..KeyLimits::default() };
    let (_dir, _store, keys, key) = limited(limits).await;
    let caller = keys.authorize(&headers("x-api-key", &key.secret), Scope::Inference).unwrap();
    for (name, rows, allowed) in [
        ("chat", vec!["chat"], true),
        ("gpt-4o", vec!["chat", "chat"], true),
        ("both", vec!["chat", "code"], false),
        ("code", vec!["code"], false),
        ("chat", vec!["code"], true),
    ] {
        assert_eq!(caller.may_use(name, rows.clone().into_iter()), allowed, "{name} {rows:?}");
    }
    assert!(Principal::local().may_use("code", std::iter::once("code")));
}

#[tokio::test]
async fn a_key_in_clear_is_nowhere_in_the_database() {
    let (dir, store) = store().await;
    let key = generate("laptop", &[Scope::Admin, Scope::Inference], KeyLimits::default());
    store.create_key(&key.row).await.unwrap();
    store.close().await;
    let bytes = std::fs::read(dir.path().join("lifeboat.db")).unwrap();
    assert!(bytes.windows(key.row.hash.len()).any(|window| window == key.row.hash), "its hash is there");
    assert!(!bytes.windows(key.secret.len()).any(|window| window == key.secret.as_bytes()));
}
